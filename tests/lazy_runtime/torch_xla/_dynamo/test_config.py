import pytest
import torch

import lazy_runtime
from lazy_runtime.torch_xla._dynamo import config, dynamo_backend2


def test_arguments_that_wait_for_a_program_can_be_refused():
    compiled = torch.compile(lambda x: x.cos().sin(), backend="openxla")
    x = torch.randn(3, 4)
    assert config.skip_input_data_check is False
    config.skip_input_data_check = True
    try:
        assert config.skip_input_data_check is True
        compiled(x.to("xla") + 1)  # the first call has the program to make
        pending = x.to("xla") + 5
        with pytest.raises(RuntimeError, match="input data to dynamo graph can not be a pending ir"):
            compiled(pending)
        lazy_runtime.sync()
        torch.testing.assert_close(compiled(pending).cpu(), (x + 5).cos().sin())
    finally:
        config.skip_input_data_check = False
    torch.testing.assert_close(compiled(x.to("xla") + 1).cpu(), (x + 1).cos().sin())


def test_the_second_backend():
    x = torch.randn(3)
    compiled = torch.compile(lambda x: x.cos() * 2, backend=dynamo_backend2.dynamo_backend)
    torch.testing.assert_close(compiled(x.to("xla")).cpu(), x.cos() * 2)
