import torch

from benchmarks.measurements import coldstart
from benchmarks.measurements.coldstart import Start


def test_a_second_process_compiles_nothing_for_resnet50(tmp_path):
    for road in ("lazy", "openxla"):
        first, second = (coldstart.fresh_process(road, str(tmp_path / road), 1, 32) for _ in range(2))
        assert first.compiles > 0
        assert (second.compiles, second.hits) == (0, first.compiles)


def test_the_front_end_alone_computes_nothing():
    torch._dynamo.reset()
    called = torch.compile(lambda x: (x @ x).sum(0) + 1, backend=coldstart.frontend)
    with torch.no_grad():
        result = called(torch.ones(3, 3))
    assert (result.shape, result.dtype, result.device.type) == ((3,), torch.float32, "cpu")


def test_bounds_are_compared_with_full_caches():
    found = {
        "lazy empty": [Start(1.0, 6.0, 0.1, 1, 0)],
        "lazy full": [Start(1.0, 1.9, 0.1, 0, 1)],
        "openxla empty": [Start(1.0, 9.0, 0.1, 2, 0)],
        "openxla full": [Start(1.0, 3.7, 0.1, 0, 2)],
        "frontend": [Start(1.0, 3.0, 0.0, 0, 0)],
    }
    rows = [line.split("|") for line in coldstart.table(found, 4, 224).splitlines() if line.startswith("|")]
    full = [[cell.strip() for cell in row] for row in rows if row[2].strip() == "full"]
    assert [(row[1], row[4], row[8], row[9]) for row in full] == [
        ("lazy", "1.90", "2.00", "met"),
        ("openxla", "3.70", "3.60", "missed"),
    ]
