"""PyTorch/XLA's way to TensorFlow's SavedModels, which this package has not."""

from __future__ import annotations

from typing import Any, NoReturn

_WAY = (
    ": this package runs on jax and jaxlib alone, and TensorFlow writes SavedModels. Save the program as StableHLO "
    "(jax.export of a function, torch.export.save of a model); jax.experimental.jax2tf.convert makes a function of "
    "TensorFlow's of a jax function, for tf.saved_model.save"
)


def make_tf_function(stablehlo_program: Any, bundle: Any = None) -> NoReturn:
    """A StableHLO program as a function of TensorFlow's.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"make_tf_function{_WAY}")


def save_stablehlo_graph_as_tf(
    stablehlo_program: Any, path: str, serving_key: str = "serving_default", function_alias: str = ""
) -> NoReturn:
    """A StableHLO program as a SavedModel.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"save_stablehlo_graph_as_tf{_WAY}")


def save_torch_module_as_tf_saved_model(
    torch_model: Any,
    args: Any,
    saved_model_dir: str,
    dynamic_shapes: Any = None,
    serving_key: str = "serving_default",
    function_alias: str = "",
) -> NoReturn:
    """A model as a SavedModel.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"save_torch_module_as_tf_saved_model{_WAY}")


def main() -> NoReturn:
    """The same as a program.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"tf_saved_model_integration{_WAY}")
