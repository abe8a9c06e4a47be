"""CI's fixed share of the operator rows: what passed must pass, and what is expected to fail must fail.

`python -m tests.operators` runs all of them.
"""

from collections import defaultdict

import pytest

from tests.operators import expected, results, rows, share
from tests.operators.run import run

SAMPLES = 2


def _by_entry(found):
    grouped = defaultdict(list)
    for row in sorted(found, key=str):
        grouped[f"{row.database}/{row.entry}"].append(row)
    return grouped


SHARE = [row for row in rows.all_rows() if share.is_in_share(row)]
_recorded = set(share.read())
PASSING = _by_entry(row for row in SHARE if row in _recorded and not expected.reason(row))
FAILING = [row for row in SHARE if expected.reason(row)]


@pytest.fixture(scope="module")
def outcomes(request):
    """The outcomes of all rows that the chosen tests are about, from one run on two workers. Each row runs what it
    compiles twice, so the workers compile without LLVM's optimizations; `make test-ops` has all rows with them.
    """
    wanted = []
    for item in request.session.items:
        if item.path == request.path:
            wanted += item.callspec.params["found"]
    collected = {}

    def report(outcome):
        collected[results.row_of(outcome)] = outcome

    failing = [row for row in wanted if expected.reason(row)]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        run([row for row in wanted if row not in failing], report, samples=SAMPLES)
        run(failing, report)  # a few of their samples may pass
    return collected


@pytest.mark.parametrize("found", PASSING.values(), ids=PASSING.keys())
def test_what_passed_passes(found, outcomes):
    failed = [f"{row}: {outcomes[row]['error']}" for row in found if outcomes[row]["outcome"] != "pass"]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("found", [[row] for row in FAILING], ids=map(str, FAILING))
def test_what_is_expected_to_fail(found, outcomes, request):
    (row,) = found
    request.applymarker(pytest.mark.xfail(reason=expected.reason(row), strict=True))
    assert outcomes[row]["outcome"] == "pass", outcomes[row]["error"]
