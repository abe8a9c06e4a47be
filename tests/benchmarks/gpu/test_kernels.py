from benchmarks.gpu import kernels


def test_what_runs_longest_comes_first():
    for mode in ("eager", "openxla"):
        found = kernels.top("squeezenet1_1", "inference", mode, False, 1, 32)
        assert 0 < len(found) <= kernels.LISTED
        assert all(each["name"] and each["ms"] >= 0 for each in found)
        assert [each["ms"] for each in found] == sorted((each["ms"] for each in found), reverse=True)
