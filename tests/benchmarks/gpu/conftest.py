import pytest

from benchmarks.gpu import precision


@pytest.fixture(autouse=True)
def registered():
    """The modes are there in a test of this folder, and gone for those of others."""
    with precision.registered():
        yield
