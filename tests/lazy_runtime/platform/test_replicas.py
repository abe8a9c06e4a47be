"""Which replica of a job a process drives."""

from __future__ import annotations

from lazy_runtime.platform import replicas
from lazy_runtime.processes import process_job


def test_a_process_without_a_job_is_the_only_replica():
    assert replicas.place() == process_job.ALONE == (0, 1, 0, 1)


def test_each_process_of_a_job_is_a_replica(ranks):
    assert [tuple(place) for place in ranks(2)(replicas.place)] == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_the_environment_says_the_place_unless_all_devices_are_one_replica(forked_process):
    code = """
        from lazy_runtime.platform import replicas, xla_devices

        print(*replicas.place())
        xla_devices.use_spmd()
        print(*replicas.place())
    """
    job = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert forked_process(code, **job, **address).splitlines() == ["5 8 1 4", "0 1 0 1"]
