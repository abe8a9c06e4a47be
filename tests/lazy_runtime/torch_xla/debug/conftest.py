"""What the tests of reports share."""

from tests.lazy_runtime.debug.conftest import forgotten as forgotten
