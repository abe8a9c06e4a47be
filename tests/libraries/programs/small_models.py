"""A training step or two, or an inference, of a small model of each of several libraries.

    python small_models.py LIBRARY cpu|xla

The last line of the output is JSON: numbers to compare.
"""

import json
import os
import sys

import torch

os.environ["KERAS_BACKEND"] = "torch"


def train(model, batches, loss_of, device, learning_rate=1e-2):
    """Losses of a loop with Adam, and at the end the sum of all parameters' magnitudes."""
    model = model.to(device)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=learning_rate)
    losses = []
    for batch in batches:
        loss = loss_of(model, *(each.to(device) for each in batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if device == "xla":
            import torch_xla

            torch_xla.sync()
    weights = sum(parameter.detach().abs().sum() for parameter in model.parameters())
    return [*torch.stack(losses).tolist(), weights.item()]


def images(count=4, channels=3, size=32):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.rand(4, channels, size, size, generator=generator), torch.randint(3, (4,), generator=generator)


def timm(device):
    from timm import create_model
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import ModelEmaV3, accuracy

    model = create_model("resnet10t", num_classes=3, in_chans=3).to(device)
    average = ModelEmaV3(model, decay=0.9)
    mixup, criterion = Mixup(mixup_alpha=0.4, num_classes=3, prob=0.0, label_smoothing=0.1), SoftTargetCrossEntropy()

    def loss_of(model, x, y):
        x, y = mixup(x, y)
        with torch.autocast(device, torch.bfloat16, enabled=False):
            loss = criterion(model(x), y)
        average.update(model)
        return loss

    found = train(model, images(), loss_of, device, 1e-4)
    x, y = next(images())
    average.module.eval()
    output = average.module(x.to(device))
    return [*found, *output.flatten().tolist(), accuracy(output, y.to(device))[0].item()]


def peft(device):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    base = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, attn_implementation="eager"))
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    tokens = torch.randint(64, (4, 4, 16), generator=torch.Generator().manual_seed(1))
    found = train(model, ((each,) for each in tokens), lambda m, t: m(input_ids=t, labels=t).loss, device)
    merged = model.merge_and_unload()
    with torch.no_grad():
        return [*found, *merged(input_ids=tokens[0].to(device)).logits[0, -1].tolist()]


def torch_geometric(device):
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GATConv(16, 3, heads=2, concat=False)

        def forward(self, x, edges, batch):
            return global_mean_pool(self.second(self.first(x, edges).relu(), edges), batch, 2)

    generator = torch.Generator().manual_seed(1)
    graphs = [
        Data(torch.randn(6, 8, generator=generator), torch.randint(6, (2, 14), generator=generator)) for _ in range(2)
    ]
    both = Batch.from_data_list(graphs)
    labels = torch.tensor([0, 2])
    batches = [(both.x, both.edge_index, both.batch, labels)] * 4
    return train(Net(), batches, lambda m, x, e, b, y: torch.nn.functional.cross_entropy(m(x, e, b), y), device, 1e-2)


def torchmetrics(device):
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score
    from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef

    generator = torch.Generator().manual_seed(1)
    classes = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3), MulticlassConfusionMatrix(3)]).to(device)
    numbers = MetricCollection([MeanSquaredError(), PearsonCorrCoef()]).to(device)
    for _ in range(3):
        scores, labels = torch.randn(8, 3, generator=generator), torch.randint(3, (8,), generator=generator)
        classes.update(scores.to(device), labels.to(device))
        numbers.update(scores[:, 0].to(device), scores[:, 1].to(device))
    found = {**classes.compute(), **numbers.compute()}
    return [number for value in found.values() for number in value.flatten().tolist()]


def x_transformers(device):
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True, attn_flash=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers))
    tokens = torch.randint(64, (4, 4, 17), generator=torch.Generator().manual_seed(1))
    return train(model, ((each,) for each in tokens), lambda m, t: m(t), device)


def kornia(device):
    import kornia.augmentation as augmentation
    from kornia import filters, geometry, losses

    x = next(images())[0].to(device)
    y = filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
    z = geometry.rotate(y, torch.tensor([10.0, 20.0, -30.0, 5.0], device=device))
    edges = filters.sobel(z)
    flipped = augmentation.RandomHorizontalFlip(p=1.0)(x)
    score = losses.ssim_loss(x, y, 5)
    return [score.item(), *edges.flatten()[::97].tolist(), *flipped.flatten()[::97].tolist()]


def segmentation_models_pytorch(device):
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=3, decoder_channels=(32, 16, 16, 8, 8))
    dice = smp.losses.DiceLoss("multiclass")
    masks = ((x, x.argmax(1)) for x, _ in images(3))
    return train(model, masks, lambda m, x, y: dice(m(x), y), device, 1e-3)


def torchao(device):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device)
    quantize_(model, Int8WeightOnlyConfig())
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        return model(x).flatten().tolist()


def keras(device):
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    with keras.device(device):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        generator = np.random.default_rng(0)
        model.set_weights([generator.standard_normal(weight.shape).astype("float32") for weight in model.get_weights()])
        x = generator.standard_normal((64, 8)).astype("float32")
        history = model.fit(x, (x**2).sum(1), batch_size=16, epochs=2, shuffle=False, verbose=0)
        return [*history.history["loss"], *model.predict(x[:4], verbose=0).flatten().tolist()]


def sentence_transformers(device):
    from sentence_transformers import InputExample, SentenceTransformer, losses, models
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as tokenizer_models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "a", "cat", "dog", "sat", "on", "the", "mat", "ran", "home", "again"]
    tokenizer = Tokenizer(tokenizer_models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = BertModel(BertConfig(**sizes, **rates, num_attention_heads=4))
    bert.save_pretrained("bert")
    fast.save_pretrained("bert")
    word = models.Transformer("bert", max_seq_length=8)
    model = SentenceTransformer(modules=[word, models.Pooling(32)], device=device)
    texts = [("the cat sat", "a cat ran", 0.9), ("the dog ran home", "a mat", 0.1), ("on the mat", "home again", 0.2)]
    examples = [InputExample(texts=[a, b], label=score) for a, b, score in texts * 4]
    loader = torch.utils.data.DataLoader(examples, batch_size=4, shuffle=False)
    model.fit([(loader, losses.CosineSimilarityLoss(model))], epochs=1, warmup_steps=0, show_progress_bar=False)
    return model.encode(["the cat sat", "home"]).flatten()[:16].tolist()


def ignite(device):
    import ignite.distributed as idist
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    target = idist.device() if device == "xla" else torch.device("cpu")
    model = idist.auto_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 3)).to(target))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, criterion, device=target)
    metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
    evaluator = create_supervised_evaluator(model, metrics=metrics, device=target)
    batches = list(images(size=8))
    found = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        state = evaluator.run(batches)
        found.extend([engine.state.output, state.metrics["accuracy"], state.metrics["loss"]])

    trainer.run(batches, max_epochs=2)
    return [*found, float(target.type == device)]


def main(library, device):
    torch.manual_seed(0)
    print(json.dumps({"numbers": globals()[library](device)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
