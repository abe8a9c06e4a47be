"""`transformers.Trainer` on several devices: two ranks, and FSDP of the second kind over two and four devices."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla
from tests.libraries.test_trainer import CLOSE, arguments

pytestmark = [needs("accelerate"), pytest.mark.long]


def compare(found, expected):
    assert found["losses"] == pytest.approx(expected["losses"], **CLOSE)
    assert found["norms"] == pytest.approx(expected["norms"], **CLOSE)
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], **CLOSE)


def test_two_ranks(tmp_path):
    """Each rank has half of the batch of one process."""
    options = arguments(max_steps=4, train_sampling_strategy="sequential")
    cpu = on_cpu("trainer.py", "llama", "cpu", *options, "use_cpu=True", folder=tmp_path)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    half = arguments(per_device_train_batch_size=2, per_device_eval_batch_size=2)
    xla = on_xla("trainer.py", "llama", "xla", *options, *half, folder=tmp_path, launcher=launcher).found
    assert xla["world"] == 2
    compare(xla, cpu)


@pytest.mark.parametrize("devices", [2, 4])
def test_fsdp_v2(devices, tmp_path):
    """The process stands for all devices, so its batch is the whole one."""
    options = arguments(max_steps=4)
    cpu = on_cpu("trainer.py", "llama", "cpu", *options, "use_cpu=True", folder=tmp_path)
    sharded = arguments(
        fsdp=True,
        fsdp_config={"xla": True, "xla_fsdp_v2": True, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        spmd=True,
    )
    xla = on_xla("trainer.py", "llama", "xla", *options, *sharded, folder=tmp_path, devices=devices).found
    compare(xla, cpu)
