import pytest
import torch

from benchmarks import models

#: Those of today that torchvision does not make.
TODAY = ("llama", "mixtral", "t5_encoder", "whisper_encoder", "unet", "recommender", "lstm")


def test_the_sets():
    assert {name: len(found) for name, found in models.SETS.items()} == {"published": 10, "today": 10}
    assert len(models.COMPARED) == 20
    assert models.MODELS.keys() - models.COMPARED.keys() == {"decoding"}


@pytest.mark.parametrize("name", ["squeezenet1_1", "timm_vision_transformer", "BERT_pytorch", *TODAY, "decoding"])
def test_model_takes_its_example(name):
    model = models.build(name).eval()
    with torch.no_grad():
        output = model(*models.example(name, batch_size=1, image_size=64))
    assert output.shape[0] == 1
    assert output.isfinite().all()


def test_weights_and_inputs_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    first, second = models.build("squeezenet1_1"), models.build("squeezenet1_1")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(*(models.example("resnet18", image_size=32)[0] for _ in range(2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_images_that_are_too_small():
    with pytest.raises(ValueError, match="alexnet takes images of at least 64 pixels a side, got 32"):
        models.example("alexnet", image_size=32)


@pytest.mark.parametrize("name", ["squeezenet1_1", "timm_vision_transformer", "swin_t", "efficientnet_b0"])
def test_without_dropout_two_training_runs_agree(name):
    model = models.without_dropout(models.build(name)).train()
    inputs = models.example(name, 1, 64)
    with torch.no_grad():
        assert torch.equal(model(*inputs), model(*inputs))


def test_decoding_is_a_call_for_each_token():
    model = models.build("decoding").eval()
    called = []

    def compile_(function):
        def call(tokens, **options):
            called.append(tuple(tokens.shape))
            return function(tokens, **options)

        return call

    model.compile_parts(compile_)
    (prompt,) = models.example("decoding")
    with torch.no_grad():
        scores, again = model(prompt), model(prompt)
        whole = model.model(torch.cat([prompt, scores[:, :-1].argmax(-1)], dim=1)).logits
    assert called == 2 * [(1, 32), *[(1, 1)] * 16]
    torch.testing.assert_close(scores, whole[:, 31:])
    torch.testing.assert_close(again, scores)
    with pytest.raises(ValueError, match="decoding generates text, which has no gradient"):
        model.train()(prompt)
