"""Memory of CPU programs stays in the process, unless the user says otherwise."""

from __future__ import annotations

import pytest

from lazy_runtime.platform import host_memory

_CODE = """
import resource, statistics, torch, lazy_runtime

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x = torch.zeros(16 << 20, device="xla")  # 64 MB: 16,384 pages
counts = []
for number in range(60):
    before = faults()
    y = x + 1
    lazy_runtime.sync(wait=True)
    del y
    counts.append(faults() - before)
# Not every execution gets old memory: glibc's posix_memalign looks for the size and the alignment together, so it
# passes over a hole that a result of the same size has left, if something small was allocated above that result
# meanwhile, and takes new memory until one result is the last in the heap. How often depends on when threads run.
print(int(statistics.median(counts)))
before = int(open("/proc/self/statm").read().split()[1])
torch.xla.empty_cache()
print(before - int(open("/proc/self/statm").read().split()[1]))
"""

pytestmark = pytest.mark.skipif(host_memory._glibc() is None, reason="another malloc than glibc's")


def test_freed_memory_is_used_again_and_can_be_returned(fresh_process):
    faulted, returned = map(int, fresh_process(_CODE).split())
    assert faulted < 2000
    assert returned > 14000


@pytest.mark.parametrize("setting", [{"XLA_KEEP_HOST_MEMORY": "0"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}], ids=str)
def test_what_the_user_says_stands(fresh_process, setting):
    faulted, _ = map(int, fresh_process(_CODE, **setting).split())
    assert faulted > 14000
