"""What `import torch_xla` finds in the processes that a script of `python -m lazy_runtime` starts (`alias.inherit`).

It makes place for the alias: after this import, `torch_xla` is lazy_runtime there too.
"""

import importlib
import sys

from lazy_runtime import alias

del sys.modules[__name__]  # importlib returns what stands there once this file has run
alias.install_torch_xla_alias(replace=True)
importlib.import_module(__name__)
