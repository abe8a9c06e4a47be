"""Generation of text in all modes."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import roofline
from benchmarks.__main__ import main
from benchmarks.measurements import generate


@pytest.fixture
def small(monkeypatch):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    monkeypatch.setattr(generate, "SIZES", {**sizes, **heads})
    monkeypatch.setattr(generate, "PROMPT", 5)
    monkeypatch.setattr(generate, "NEW", 3)
    monkeypatch.setattr(roofline, "bandwidth", lambda: 1e9)


def test_from_the_command_to_the_table(small, capsys):
    modes = "eager,openxla_cpu,openxla,lazy"
    command = ["generate", "--modes", modes, "--weights", "float32", "--batches", "1", "2", "--repeat", "1"]
    assert main(command) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| float32")]
    assert [(int(batch), mode.strip()) for _, batch, mode, *_ in rows] == [
        (batch, mode) for batch in (1, 2) for mode in modes.split(",")
    ]
    for *_, prefill, token, rate, share, _ in rows:
        assert float(prefill) > 0
        # a token's time is a difference of two, which noise may turn round where it is as short as here
        assert all(math.isfinite(float(cell)) for cell in (token, rate, share))


def test_other_tokens_than_eagers_are_refused(small, monkeypatch):
    build = generate.build

    def other(weights):
        model = build(weights)
        with torch.no_grad():
            model.lm_head.weight[next(numbers)] += 10
        return model

    numbers = iter(range(2))
    monkeypatch.setattr(generate, "build", other)
    with pytest.raises(RuntimeError, match="lazy generates other tokens than eager"):
        generate.times(["eager", "lazy"], "float32", 1, 1)


def test_each_token_reads_all_weights_but_those_of_the_embedding(small):
    model = generate.build("bfloat16")
    embedding = model.get_input_embeddings().weight
    assert roofline.weight_bytes(model) == 2 * (sum(x.numel() for x in model.parameters()) - embedding.numel())
