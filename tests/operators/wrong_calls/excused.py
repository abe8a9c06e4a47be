"""Wrong calls that xla and the CPU judge differently, and why that holds."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Excused:
    """Some differences and the reason for them.

    Args:
        entries: a regular expression over the whole name of an entry.
        kinds: one over the whole name of the change, see `wrong`.
        problems: one that is searched in the difference.
    """

    reason: str
    entries: str = ".*"
    kinds: str = ".*"
    problems: str = ""

    def takes(self, entry: str, kind: str, problem: str) -> bool:
        return (
            re.fullmatch(self.entries, entry) is not None
            and re.fullmatch(self.kinds, kind) is not None
            and re.search(self.problems, problem) is not None
        )


EXCUSED: list[Excused] = [
    Excused(
        "XLA computes 16-bit floats where the CPU's kernel has none, as kernels of other devices do",
        problems=r"(not implemented for|not supported for) '?(Half|BFloat16)",
    ),
    Excused("sparse layouts: XLA's tensors are dense", "sparse_sampled_addmm|sparse_mm_reduce|to_sparse"),
    Excused("complex32: XLA has no such dtype", problems="complex32"),
    Excused(
        "made of views, which torch takes of tensors on any devices",
        "broadcast_tensors|expand_as|meshgrid.*|atleast_.*|to|type_as|view_as|reshape_as|resize_as_|unflatten",
        kinds="device",
    ),
    Excused("torch moves the targets itself, on any device", "nn_functional_ctc_loss", kinds="device"),
    Excused("indices and masks of the CPU are taken on any device", "__getitem__|index_put|.*tensor_split", "device"),
    Excused(
        "infinities: which parts of the result are NaN, and whether a factorization notices, goes by the algorithm",
        kinds="values",
        problems="nan at index|inf at index|_LinAlgError|INTERNAL ASSERT FAILED at .*BatchLinearAlgebra",
    ),
    Excused("which eigenvalue is the first goes by the algorithm", "linalg_eigvals", "values", "values differ"),
    Excused(
        "of two things that are wrong with a call torch's meta kernel, or ours, names the other one",
        "native_batch_norm|nn_functional_multilabel_margin_loss|index_fill|stft|unfold|nn_functional_unfold"
        "|_segment_reduce.*",
        problems="^raises",
    ),
    Excused(
        "a factory that is not told its device is the CPU's", kinds="fewer|kind", problems="is not on the xla device"
    ),
    Excused("of no elements, in which the CPU looks at nothing", "roll", "number", "Dimension out of range"),
    Excused(
        "torch takes another of its operators where gradients may be wanted, whose CPU kernel has bytes",
        "nn_functional_max_pool1d",
        problems="max_pool1d_impl",
    ),
    Excused("torch's own operator, which users do not call", "_unsafe_masked_index.*"),
    Excused("sizes differ, so that nothing is read", "equal", "device"),
    Excused("float8: torch's kernels cannot be called with it from an XLA program", "torch__scaled_mm.*"),
    Excused(
        "the CPU has a kernel for the whole, which takes more dtypes and sizes than the operators that it stands for",
        "nn_functional_linear_cross_entropy.*",
        problems="^refused",
    ),
    Excused(
        "torch's promotion of two 16-bit operands and others comes before the CPU has no kernel for the result",
        "cdist",
        kinds="dtype",
    ),
    Excused(
        "torch's meta kernel compares dtypes before it sees that there is nothing to multiply",
        "matmul|__rmatmul__",
        kinds="dtype",
        problems="scalar type|same dtype|dtype",
    ),
    Excused("it counts integers as CUDA's kernel does, on which code for accelerators relies", "histc", "dtypes?"),
    Excused(
        "torch.norm takes another of its operators for devices that it does not know, of the last two dimensions",
        "norm_nuc",
        problems="dim must be a 2-tuple",
    ),
    Excused("a number that torch's functions have no name for", "grid_sampler_2d", "number", "Invalid padding mode"),
    Excused(
        "the CPU's kernel reads beyond its operands",
        "nn_functional_ctc_loss|_segment_reduce.*",
        "index|sizes",
        "values differ|Expected segments for each",
    ),
    Excused(
        "sums of up to 255 that cancel, and recurrences of up to 255 steps: what rounding leaves goes with the terms",
        r"fft_.*|special_.*_polynomial_.*",
        "dtypes?",
        "values differ",
    ),
    Excused(
        "jaxlib's exp of a NaN that the compiler knows beforehand is undefined (0.10.2)",
        "signal_windows_gaussian",
        "number",
        "nan at index",
    ),
]


def reason(entry: str, kind: str, problem: str) -> str | None:
    """Why the difference holds; None for one that is a fault."""
    return next((each.reason for each in EXCUSED if each.takes(entry, kind, problem)), None)
