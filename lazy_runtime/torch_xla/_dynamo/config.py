"""What compiled functions do with arguments that wait for a program.

Attributes:
    skip_input_data_check: they raise, instead of executing what their arguments wait for. What the step defers to its
        end goes on as before. False by default.
"""

from __future__ import annotations

import sys
import types

from ...execution import execute


class _Config(types.ModuleType):
    @property
    def skip_input_data_check(self) -> bool:
        return not execute.takes_pending_inputs

    @skip_input_data_check.setter
    def skip_input_data_check(self, skips: bool) -> None:
        execute.takes_pending_inputs = not skips


sys.modules[__name__].__class__ = _Config
