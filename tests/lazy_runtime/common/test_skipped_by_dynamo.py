"""What Dynamo must not look at."""

from __future__ import annotations

import pytest
import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from lazy_runtime.common.skipped_by_dynamo import skip


def test_dynamo_is_off_within_and_on_again_afterwards():
    seen = []

    @torch.compiler.disable(recursive=False)  # a graph break; Dynamo goes on with what is called
    def broken(fail):
        before = get_eval_frame_callback()
        try:
            skip(look)(fail)
        finally:
            seen.append((before is not None, get_eval_frame_callback() is before))

    def look(fail):
        seen.append(get_eval_frame_callback())
        if fail:
            raise ValueError("as it was")

    for fail in (False, True):
        compiled = torch.compile(lambda x, fail=fail: (broken(fail), x + 1), backend="eager")
        if fail:
            with pytest.raises(ValueError, match="as it was"):
                compiled(torch.ones(2))
        else:
            compiled(torch.ones(2))
        assert seen[-2:] == [None, (True, True)]
