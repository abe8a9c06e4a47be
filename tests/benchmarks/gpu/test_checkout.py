from importlib.metadata import distributions

from benchmarks.gpu.checkout import is_installed, write_metadata


def test_a_checkout_has_the_entry_points_of_an_installation(tmp_path):
    assert is_installed()
    (found,) = distributions(path=[str(write_metadata(tmp_path))])
    assert found.metadata["Name"] == "openxla-torch"
    points = {(point.group, point.name): point.value for point in found.entry_points}
    assert points["torch_dynamo_backends", "openxla"] == "openxla_backend.backend:openxla"
    assert points["torch.backends", "xla"] == "lazy_runtime._autoload:load"
    assert callable(next(iter(found.entry_points.select(group="torch_dynamo_backends", name="openxla"))).load())
