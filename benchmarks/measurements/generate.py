"""Language models that generate text by `generate(cache_implementation="static")`: prefill, and tokens per second."""

from __future__ import annotations

import contextlib
import functools
import importlib
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

from .. import measure, roofline
from ..models.model import transformers
from ..modes import warm_up


class Mode(NamedTuple):
    """Where a model lives, and who compiles its `forward`.

    Attributes:
        device: where the model and its inputs live.
        backend: what `torch.compile` gets; None leaves the model uncompiled.
    """

    device: str
    backend: str | None = None


MODES = {
    "eager": Mode("cpu"),
    "inductor": Mode("cpu", "inductor"),
    "openxla_cpu": Mode("cpu", "openxla"),
    "openxla": Mode("xla", "openxla"),
    "lazy": Mode("xla"),
}

#: What a user could pick in place of this package.
OTHERS = ("eager", "inductor")

#: What the weights are: a dtype, or a quantisation of torchao's of float32.
WEIGHTS = ("float32", "bfloat16", "int8")

#: Of a Llama of 62 million parameters, whose weights no cache holds.
SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}

#: Tokens of the prompt, and tokens that are generated after the first.
PROMPT, NEW = 128, 32


def build(weights: str = "float32") -> Any:
    """The model with fresh weights.

    Raises:
        ImportError: torchao is not installed, which int8 needs.
    """
    library = transformers()
    torch.manual_seed(0)
    model = library.LlamaForCausalLM(library.LlamaConfig(**SIZES)).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    if weights == "int8":
        quantization: Any = importlib.import_module("torchao.quantization")
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
        return model
    return model.to(getattr(torch, weights))


class Generation:
    """A model in one mode that continues a prompt."""

    def __init__(self, mode: Mode, weights: str, batch: int):
        self.model = build(weights).to(mode.device)
        if mode.backend is not None:
            self.model.forward = torch.compile(self.model.forward, backend=mode.backend)
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(1, SIZES["vocab_size"], (batch, PROMPT), generator=generator).to(mode.device)

    def tokens(self, count: int) -> list[list[int]]:
        """The most probable `count` tokens after the prompt, of each sequence of the batch."""
        with _quiet(), torch.no_grad():
            made = self.model.generate(
                self.prompt,
                attention_mask=torch.ones_like(self.prompt),
                max_new_tokens=count,
                do_sample=False,
                cache_implementation="static",
            )
        return made[:, PROMPT:].tolist()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Times(NamedTuple):
    """Seconds of one mode, each a median.

    Attributes:
        first: until the first token is there, the prompt's prefill.
        token: for each token after it.
    """

    first: float
    token: float


def times(names: Sequence[str], weights: str, batch: int, rounds: int) -> dict[str, Times]:
    """The times of these modes, which take turns.

    Raises:
        RuntimeError: in float32, a mode generates other tokens than eager.
    """
    torch.compiler.reset()
    warm_up([])
    runs = {name: Generation(MODES[name], weights, batch) for name in names}
    tokens = {}
    for name, run in runs.items():
        # the longest first: transformers makes each later cache as long
        tokens[name] = run.tokens(NEW + 1)
        run.tokens(2)
    if weights == "float32":
        for name in names:
            if tokens[name] != tokens[names[0]]:
                raise RuntimeError(f"{name} generates other tokens than {names[0]}")
    seen: dict[str, list[Times]] = {name: [] for name in names}
    for _ in tqdm(range(rounds), unit="round", dynamic_ncols=True, disable=None):
        for name, run in runs.items():
            run.tokens(2)  # threads that slept through the others' turns wake
            first = measure.seconds(functools.partial(run.tokens, 1))
            whole = measure.seconds(functools.partial(run.tokens, NEW + 1))
            seen[name].append(Times(first, (whole - first) / NEW))
    return {name: Times(*map(statistics.median, zip(*each, strict=True))) for name, each in seen.items()}


def table(names: Sequence[str], kinds: Sequence[str], batches: Sequence[int], rounds: int) -> str:
    """Milliseconds to the first token, tokens per second and the share of the memory's bandwidth."""
    most, body = roofline.bandwidth(), []
    for kind in kinds:
        size = roofline.weight_bytes(build(kind))
        for batch in batches:
            found = times(names, kind, batch, rounds)
            others = [found[name].token for name in names if name in OTHERS]
            for name, (first, token) in found.items():
                ratio = min(others) / token if others else None
                body.append([kind, batch, name, 1e3 * first, 1e3 * token, batch / token, size / token / most, ratio])
    headers = ["weights", "batch", "mode", "prefill, ms", "a token, ms", "tokens/s", "of bandwidth", "fastest other"]
    digits = (*[""] * 3, ".1f", ".2f", ".0f", ".2f", ".2f")
    text = tabulate(body, headers=headers, tablefmt="github", floatfmt=digits)
    return (
        f"### Generation after {PROMPT} tokens, {NEW} more (medians of {rounds})\n\n{text}\n\n"
        f"Of bandwidth: the weights' bytes, read once a token, beside {most / 1e9:.1f} GB/s that were measured. "
        "Fastest other: its time for a token over this mode's."
    )
