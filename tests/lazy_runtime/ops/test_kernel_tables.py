"""The tables of kernels: their order, what each row accepts and why not, how they are printed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lazy_runtime import ops
from lazy_runtime.debug import kernel_tables
from lazy_runtime.ir import lowering_context
from lazy_runtime.ops import kernels
from lazy_runtime.ops.attention import attention_aten, attention_cudnn
from lazy_runtime.ops.attention.attention_kernels import ATTENTION
from lazy_runtime.ops.attention.attention_kernels import GRADIENT as ATTENTION_GRADIENT
from lazy_runtime.ops.attention.attention_problem import AttentionProblem
from lazy_runtime.ops.convolution import (
    convolution_aten,
    depthwise_gradient,
    direct_convolution,
    packed_convolution,
    winograd,
)
from lazy_runtime.ops.convolution.convolution_kernels import CONVOLUTION
from lazy_runtime.ops.convolution.convolution_kernels import GRADIENT as CONVOLUTION_GRADIENT
from lazy_runtime.ops.convolution.convolution_problem import ConvolutionProblem, Geometry
from lazy_runtime.ops.kernels import Kernel, Packing, Refused, Table
from lazy_runtime.ops.linalg import matmul_aten, packed_linear, skinny_matmul, small_k_matmul
from lazy_runtime.ops.linalg.matmul_kernels import MATMUL
from lazy_runtime.ops.linalg.matmul_problem import MatmulProblem
from lazy_runtime.ops.nn import batch_statistics, folding
from lazy_runtime.ops.nn.batch_statistics import BatchNormProblem
from lazy_runtime.ops.nn.folding import FoldingProblem
from tests import native_part

native_part.need_bridge()


@pytest.fixture
def scratch(monkeypatch):
    """Tables made within are gone afterwards."""
    monkeypatch.setattr(kernels, "tables", dict(kernels.tables))
    monkeypatch.setattr(kernels, "packed_operators", set(kernels.packed_operators))


def _even(problem):
    return problem % 2 == 0 or Refused(f"{problem} is odd")


def _small(problem):
    return problem < 10 or Refused(f"{problem} is not below 10")


# ---- the table itself


def test_the_first_row_that_accepts_is_chosen(scratch):
    even, small, every = Kernel("even", _even, str), Kernel("small", _small, str), Kernel("every", lambda _: True, str)
    table = Table("of numbers", [even, small, every])
    assert [table.choose(n).name for n in (4, 5, 12, 13)] == ["even", "small", "even", "every"]


def test_a_choice_keeps_the_reasons(scratch):
    table = Table("of numbers", [Kernel("even", _even, str), Kernel("small", _small, str), Kernel("odd", bool, str)])
    kernels.clear()
    table.choose(13)
    (choice,) = kernels.choices()
    assert choice.kernel == "odd"
    assert choice.refused == (("even", "13 is odd"), ("small", "13 is not below 10"))
    assert str(choice) == "of numbers, 13: odd\n  not even: 13 is odd\n  not small: 13 is not below 10"


def test_a_problem_that_no_row_accepts_is_an_error_with_the_reasons(scratch):
    table = Table("of numbers", [Kernel("even", _even, str)])
    with pytest.raises(NotImplementedError, match="13 is odd"):
        table.choose(13)


def test_a_kind_has_one_table(scratch):
    Table("of numbers", [])
    with pytest.raises(ValueError, match="two tables"):
        Table("of numbers", [])


def test_only_rows_that_pack_take_a_kept_weight(scratch):
    pack, apply = torch.ops.aten.relu.default, torch.ops.aten.add.Tensor
    packing = Packing(pack, apply, lambda weight, _: weight.shape)
    table = Table("of numbers", [Kernel("even", _even, str), Kernel("small", _small, packing=packing)])
    kernels.clear()
    assert table.choose_packing(4) is table.rows[1]
    assert table.choose_packing(12) is None
    assert [choice.is_packing for choice in kernels.choices()] == [True, True]
    assert {"aten::relu", "aten::add"} <= kernels.packed_operators


def test_what_a_thread_chooses_is_collected(scratch):
    table = Table("of numbers", [Kernel("even", _even, str), Kernel("every", lambda _: True, str)])
    with kernels.collected() as found:
        table.choose(1)
        table.choose(2)
    table.choose(3)
    assert [choice.kernel for _, choice in found] == ["every", "even"]


# ---- the order


def test_the_order_of_the_tables():
    ops.load_all()
    assert {kind: [row.name for row in table.rows] for kind, table in kernels.tables.items()} == {
        "convolution": [
            "Winograd",
            "pointwise, packed filters",
            "depthwise, packed filters",
            "oneDNN, packed filters",
            "ATen, filters kept channels last",
            "oneDNN, filters as they lie",
            "ATen",
            "matrix product",
            "XLA, sum of shifted images",
            "XLA, transposed",
            "XLA",
        ],
        "convolution gradient": [
            "Winograd, image",
            "depthwise, filters",
            "Winograd, filters",
            "ATen",
            "matrix product",
            "XLA, image",
            "XLA, sums of shifted images",
            "XLA, filters",
        ],
        "matrix product": ["oneDNN, packed matrix", "skinny", "small k", "bfloat16 upcast", "ATen", "oneDNN", "XLA"],
        "attention": ["few queries", "native", "ATen", "cuDNN", "XLA, in blocks"],
        "attention gradient": ["ATen", "cuDNN", "XLA, in blocks"],
        "batch norm": ["native", "XLA"],
        "batch norm gradient": ["native", "XLA"],
        "batch norm behind a convolution": ["folded into the filters"],
        "recurrence": ["native", "loop"],
    }


def test_a_row_is_lowered_or_packs():
    ops.load_all()
    for table in kernels.tables.values():
        for row in table.rows:
            assert row.lower is not None or row.packing is not None


# ---- what rows accept, and why not


def _convolution(image=(4, 64, 28, 28), filters=(64, 64, 3, 3), padding=1, groups=1, dtype="float32", **further):
    n = len(filters) - 2
    geometry = Geometry.of(n, [1], [padding], [1], False, [0], groups)
    where = {"platform": "cpu", **further}
    return ConvolutionProblem(image, filters, geometry, dtype, filters_dtype=dtype, result_dtype=dtype, **where)


def _reason(verdict):
    assert isinstance(verdict, Refused), verdict
    return verdict.reason


GPU = "it is for the CPU, not for gpu"


@pytest.mark.parametrize(
    ("accepts", "problem", "reason"),
    [
        (winograd.accepts, _convolution(dtype="bfloat16"), "it is for float32"),
        (winograd.accepts, _convolution(filters=(64, 64, 5, 5)), "the filters are not of 3x3"),
        (winograd.accepts, _convolution(filters=(64, 60, 3, 3)), "multiples of 16"),
        (winograd.accepts, _convolution(groups=2, filters=(64, 32, 3, 3)), "grouped"),
        (winograd.accepts, _convolution(image=(1, 64, 7, 7)), "4 tiles of 4x4 pixels are fewer than 8"),
        (winograd.accepts, _convolution(image=(4, 64, 7, 7)), "for 196 pixels, fewer than 512"),
        (winograd.accepts, _convolution(platform="gpu"), GPU),
        (winograd.accepts, _convolution(image=(-1, 64, 28, 28), kept_on="xla"), "vary from call to call"),
        (winograd.accepts_image_gradient, _convolution(padding=3, gradient="image"), "padding of 3"),
        (winograd.accepts_image_gradient, _convolution(gradient="filters"), "for the gradient of the image"),
        (direct_convolution.accepts_pointwise, _convolution(filters=(64, 64, 1, 1), padding=0), "not kept"),
        (
            direct_convolution.accepts_pointwise,
            _convolution((1, 8, 4, 4), (8, 8, 1, 1), padding=0, kept_on="xla"),
            "1,024 multiplications are fewer than 65,536",
        ),
        (direct_convolution.accepts_depthwise, _convolution(kept_on="xla"), "each channel by itself"),
        (packed_convolution.accepts, _convolution(kept_on="xla", is_narrowed=True), "fewer bits"),
        (convolution_aten.accepts, _convolution(platform="gpu"), GPU),
        (convolution_aten.accepts, _convolution(image=(0, 64, 28, 28)), "empty"),
        (convolution_aten.accepts, _convolution(dtype="float64"), "oneDNN has no float64"),
        (convolution_aten.accepts_uncopied, _convolution(), "fewer than 262,144 numbers"),
        (convolution_aten.accepts_channels_last, _convolution(kept_on="cpu"), "has the strides"),
        (depthwise_gradient.accepts, _convolution(gradient="filters"), "each channel by itself"),
        (skinny_matmul.accepts, MatmulProblem((9, 512), (512, 512), "float32", "float32", "cpu"), "9 rows"),
        (skinny_matmul.accepts, MatmulProblem((4, 64), (64, 64), "float32", "float32", "cpu"), "fewer than 131,072"),
        (skinny_matmul.accepts, MatmulProblem((4, 64), (64, 64), "float32", "bfloat16", "cpu"), "dtypes differ"),
        (small_k_matmul.accepts, MatmulProblem((9, 5), (5, 9), "float32", "bfloat16", "cpu"), "dtypes differ"),
        (small_k_matmul.accepts, MatmulProblem((9, 512), (512, 512), "float32", "float32", "cpu"), "512 terms"),
        (matmul_aten.accepts, MatmulProblem((9, 512), (512,), "float32", "float32", "cpu"), "no matrices"),
        (matmul_aten.accepts, MatmulProblem((9, 5), (5, 9), "float32", "bfloat16", "cpu"), "dtypes differ"),
        (
            matmul_aten.accepts,
            MatmulProblem((9, 5), (5, 9), "bfloat16", "bfloat16", "cpu"),
            "405 multiplications are fewer than 1,048,576",
        ),
        (packed_linear.accepts, MatmulProblem((9, 5), (5, 9), "float32", "float32", "cpu"), "not kept"),
        (
            packed_linear.accepts,
            MatmulProblem((9, 5), (5, 9), "float32", "float32", "cpu", kept_on="xla", refuses_packing="no bias"),
            "no bias",
        ),
        (
            attention_aten.accepts,
            AttentionProblem(*[(2, 3, 8, 16)] * 3, "float32", "cpu", has_dropout=True),
            "it has no dropout",
        ),
        (
            attention_aten.accepts_gradient,
            AttentionProblem(*[(2, 3, 8, 16)] * 3, "float32", "cpu", wants_mask=True),
            "no gradient of the mask",
        ),
        (attention_cudnn.accepts, AttentionProblem(*[(2, 3, 8, 16)] * 3, "float16", "cpu"), "for NVIDIA GPUs"),
        (attention_cudnn.accepts, AttentionProblem(*[(2, 3, 8, 16)] * 3, "float16", "gpu"), "the scores are few"),
        (batch_statistics.accepts, BatchNormProblem((4, 8), "float32", "cpu"), "32 numbers"),
        (folding.accepts, FoldingProblem((8, 4, 3, 3), ("bfloat16",)), "rounded once more"),
        (folding.accepts, FoldingProblem((8, 4, 3, 3), ("bfloat16", "float32")), "dtypes differ"),
        (folding.accepts, FoldingProblem((8, 4, 3, 3), ("float32",), "it has other users"), "it has other users"),
        (batch_statistics.accepts, BatchNormProblem((4, 8), "float64", "cpu"), "for float32, not float64"),
    ],
)  # fmt: skip
def test_reasons(accepts, problem, reason):
    assert reason in _reason(accepts(problem))


def test_a_sharded_program_calls_no_kernel():
    with lowering_context.changed(is_sharded=True):
        assert "sharded" in _reason(convolution_aten.accepts(_convolution()))
        assert CONVOLUTION.choose(_convolution()).name == "XLA"


@pytest.mark.parametrize(("name", "row"), [("XLA_CPU_WINOGRAD", winograd.KERNEL)])
def test_a_variable_that_turns_a_kernel_off_is_the_reason(monkeypatch, name, row):
    monkeypatch.setenv(name, "0")
    assert _reason(row.available("cpu")) == f"{name} is off"


def test_what_each_table_chooses_on_a_gpu():
    gpu = {"platform": "gpu"}
    assert CONVOLUTION.choose(_convolution(**gpu)).name == "XLA"
    assert CONVOLUTION.choose(_convolution(filters=(64, 64, 1, 1), padding=0, **gpu)).name == "matrix product"
    depthwise = _convolution(filters=(64, 1, 3, 3), groups=64, **gpu)
    assert CONVOLUTION.choose(depthwise).name == "XLA, sum of shifted images"
    chosen = [CONVOLUTION_GRADIENT.choose(depthwise._replace(gradient=which)).name for which in ("image", "filters")]
    assert chosen == ["XLA, image", "XLA, sums of shifted images"]
    assert MATMUL.choose(MatmulProblem((4, 512), (512, 512), "float32", "float32", "gpu")).name == "XLA"
    few = AttentionProblem(*[(2, 3, 8, 16)] * 3, "float32", "gpu")
    assert ATTENTION.choose(few).name == ATTENTION_GRADIENT.choose(few).name == "XLA, in blocks"


def test_kept_filters_of_images_of_any_size_are_channels_last():
    problem = _convolution(image=(-1, 64, 28, 28), filters=(128, 64, 3, 3), kept_on="xla")
    found = CONVOLUTION.choose_packing(problem)
    assert found is not None
    assert found.name == "ATen, filters kept channels last"


# ---- as text


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (_convolution(padding=0), "images 4x64x28x28, filters 64x64x3x3 of float32 on cpu"),
        (
            _convolution((-1, 64, 9, 9), (64, 32, 3, 3), groups=2, gradient="image"),
            "images ?x64x9x9, filters 64x32x3x3 of float32, padding 1x1, 2 groups, of the image on cpu",
        ),
        (MatmulProblem((9, 5), (5, 9), "float32", "float32", "cpu"), "9x5 by 5x9 of float32 on cpu"),
        (
            AttentionProblem(*[(2, 3, 8, 16)] * 3, "float16", "gpu", "bool", has_dropout=True),
            "queries 2x3x8x16, keys 2x3x8x16, values 2x3x8x16 of float16, a mask of bool, dropout on gpu",
        ),
        (FoldingProblem((8, 4, 3, 3), ("float32",)), "filters 8x4x3x3 of float32"),
        (BatchNormProblem((4, 8), "float64", "cpu"), "image 4x8 (channels last) of float64 on cpu"),
    ],
)
def test_problems_in_words(problem, text):
    assert str(problem) == text


def test_the_printed_tables(monkeypatch):
    monkeypatch.setattr(matmul_aten, "LEAST_MKL", 12345)
    text = kernel_tables.text("cpu", ["matrix product"])
    lines = text.splitlines()
    assert lines[0].startswith("Kernels on cpu")
    assert lines[2] == "matrix product"
    rows = [line for line in lines[3:] if line[:4].strip().isdigit()]
    assert len(rows) == len(MATMUL.rows)
    for number, (line, row) in enumerate(zip(rows, MATMUL.rows, strict=True), 1):
        assert line.startswith(f"  {number:>2}. {row.name}")
    assert "least multiplications of float32 and float64: 12,345" in text
    assert "for kept weights alone" in text
    assert "attention" not in text


def test_the_printed_tables_say_what_is_not_there():
    text = kernel_tables.text("gpu", ["batch norm"])
    assert f"not available: {GPU}" in text


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="'pooling'"):
        kernel_tables.text("cpu", ["pooling"])


def test_the_command_line():
    command = [sys.executable, "-m", "lazy_runtime.kernels", "batch norm"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert "batch norm\n" in found.stdout
    assert "native" in found.stdout
