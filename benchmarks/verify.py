"""What a mode's results are held to: the same run in eager mode on the CPU, or its like in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

FLOAT64_IMAGE_SIZE = 128

Results = Mapping[str, torch.Tensor]

#: What a test's results are.
RESULTS = {"inference": "outputs", "training": "gradients", "step": "updates"}


#: How far from float64 float32 gradients may be where eager's own are further than `GRADIENTS`: two sums in another
#: order are as far from each other as either is from the exact one, times √2.
GRADIENTS, OF_EAGERS = 1e-3, 2.0

#: Bfloat16's results.
BFLOAT16 = 5e-2

#: The same for eager itself in another memory format, which is the peer's meaning and not ours to fail: its batch norm
#: is less exact there (at batch 4 mobilenet_v2's gradients are 2.5 times as far, mnasnet1_0's 2.4 times).
OF_EAGERS_IN_ANOTHER_FORMAT = 4.0


class Reference(NamedTuple):
    """What results are compared with.

    Attributes:
        results: eager's, or in the same dtype what eager computes in float64.
        own_error: eager's relative error from these.
    """

    results: Results
    own_error: float = 0.0


class Check(NamedTuple):
    """One comparison with eager.

    Attributes:
        what: what was compared.
        error: relative error by the norm over all of it together.
        bound: the largest error that passes.
    """

    what: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound

    def record(self) -> dict[str, Any]:
        """The check as JSON can hold it; an error that is no finite number becomes text."""
        finite = self.error == self.error and abs(self.error) != float("inf")
        return {"what": self.what, "error": self.error if finite else str(self.error), "bound": self.bound}


def check(
    test: str,
    actual: Results,
    reference: Reference,
    autocast: bool = False,
    of_eagers: float = OF_EAGERS,
    tf32: bool = False,
) -> Check:
    """Compares one model's results in a mode with eager's.

    Args:
        autocast: the mode computes in bfloat16 what torch's autocast says.
        of_eagers: how many times eager's own error passes.
        tf32: the mode's products of float32 are TF32's.

    Raises:
        ValueError: there are other results than eager's, or results of other shapes or dtypes.
    """
    expected = reference.results
    dtype = torch.bfloat16 if autocast else next(iter(expected.values())).dtype
    if autocast:
        actual = {key: value.to(expected[key].dtype) if key in expected else value for key, value in actual.items()}
    name = "TF32" if tf32 and dtype == torch.float32 else str(dtype).removeprefix("torch.")
    error = relative_error(actual, expected)
    return Check(f"{name} {RESULTS[test]}", error, bound(test, dtype, reference.own_error, of_eagers, tf32))


def reference(results: Results, exact: Results | None) -> Reference:
    """What is compared with: eager's results, or exact ones where there are any."""
    return Reference(results) if exact is None else Reference(exact, relative_error(results, exact))


def bound(
    test: str, dtype: torch.dtype, own_error: float = 0.0, of_eagers: float = OF_EAGERS, tf32: bool = False
) -> float:
    """The largest relative error that passes.

    Of bfloat16's 8 bits a model leaves some: eager's own outputs under autocast are 5.5e-3 (BERT) and 9.5e-3 (the
    vision transformer) from float32. TF32 has three bits more.

    Float32 gradients through batch norm are ill-conditioned: eager's own are 2.4e-2 from float64 on resnet50 at batch
    4. There all are held to float64, and to some times eager's own error (`worker.reference`). A first step's updates
    are the gradients times a constant. With fewer bits than float32's those gradients mean little, whoever computes.

    Args:
        own_error: eager's, of what it is compared with.
        of_eagers: how many times that passes.
        tf32: float32's products are TF32's.
    """
    if dtype == torch.bfloat16:
        return max(BFLOAT16, of_eagers * own_error)
    if dtype == torch.float64:
        return 1e-9
    if tf32:
        return max(BFLOAT16 / 8, of_eagers * own_error)
    return 1e-4 if test == "inference" else max(GRADIENTS, of_eagers * own_error)


def relative_error(actual: Results, expected: Results) -> float:
    """‖actual - expected‖ / ‖expected‖ with all tensors taken as one vector; NaN or infinite if a value is.

    Raises:
        ValueError: the names, shapes or dtypes differ.
    """
    if actual.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
        raise ValueError(f"results differ from eager's: missing {missing or 'none'}, additional {extra or 'none'}")
    difference = size = 0.0
    for name, reference in expected.items():
        tensor = actual[name]
        if tensor.shape != reference.shape or tensor.dtype != reference.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)}, "
                f"eager's is {reference.dtype} of shape {list(reference.shape)}"
            )
        reference = reference.double()
        difference += (tensor.double() - reference).square().sum().item()
        size += reference.square().sum().item()
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    return (difference / size) ** 0.5
