"""Operators that make tensors of numbers."""

#: Those whose lowering takes no tensor, so that torch asks the XLA key for them. Any of them may be the first use of
#: xla: torch's own composite would begin with an empty tensor, resize it, and leave a storage of no bytes.
FACTORIES = (
    "_efficientzerotensor",
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "full",
    "linspace",
    "logspace",
    "ones",
    "randperm",
    "randperm.generator",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
)
