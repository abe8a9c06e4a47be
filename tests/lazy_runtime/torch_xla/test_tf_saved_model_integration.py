import pytest

from lazy_runtime.torch_xla import tf_saved_model_integration as tf


def test_says_what_to_use():
    for call in (
        lambda: tf.make_tf_function(None),
        lambda: tf.save_stablehlo_graph_as_tf(None, "path"),
        lambda: tf.save_torch_module_as_tf_saved_model(None, (), "path"),
        tf.main,
    ):
        with pytest.raises(NotImplementedError, match="jax2tf"):
            call()
