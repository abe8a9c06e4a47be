"""`python -m lazy_runtime.native` builds the C++ part for the torch of this interpreter."""

from .build import main
from .libraries import writable

raise SystemExit(main(writable))
