import threading

from lazy_runtime.common import metrics


def test_samples_that_are_kept_and_samples_that_are_counted():
    for number in range(metrics.MAX_SAMPLES + 10):
        metrics.record("a quantity", number, metrics.Unit.VALUE)
    metric = metrics.snapshot()[1]["a quantity"]
    assert metric.total == metrics.MAX_SAMPLES + 10
    assert metric.accumulator == sum(range(metrics.MAX_SAMPLES + 10))
    assert [value for _, value in metric.samples] == list(range(10, metrics.MAX_SAMPLES + 10))
    assert metric.samples[0][0] <= metric.samples[-1][0]


def test_a_snapshot_does_not_change():
    metrics.record("a quantity", 1)
    before = metrics.snapshot()[1]["a quantity"]
    metrics.record("a quantity", 2)
    assert (before.total, len(before.samples)) == (1, 1)


def test_counters_of_zero_are_not_in_a_snapshot():
    metrics.count("something", 0)
    metrics.count("something else")
    counted, _ = metrics.snapshot()
    assert "something" not in counted
    assert counted["something else"] == 1


def test_time_is_measured_even_where_the_block_fails():
    try:
        with metrics.timed("a time"):
            raise KeyError
    except KeyError:
        pass
    metric = metrics.snapshot()[1]["a time"]
    assert metric.unit is metrics.Unit.TIME
    assert metric.accumulator > 0


def test_threads_lose_no_sample():
    def work():
        for _ in range(2000):
            metrics.record("a quantity", 1)
            metrics.count("something")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted, measured = metrics.snapshot()
    assert counted["something"] == measured["a quantity"].total == measured["a quantity"].accumulator == 8000
