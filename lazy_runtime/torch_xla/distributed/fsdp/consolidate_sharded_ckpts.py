"""Makes one checkpoint of the ranks' files.

python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix PREFIX [--ckpt_suffix "_rank-*.pth"]
    [--save_path FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .state_dict_utils import consolidate_sharded_model_checkpoints

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Does so, and prints where the checkpoint is.

    Args:
        arguments: of the command line; by default those of the process.
    """
    parser = argparse.ArgumentParser(description="Makes one checkpoint of the ranks' files.")
    parser.add_argument("--ckpt_prefix", required=True, help="what the files' names begin with")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="a pattern of how they end")
    parser.add_argument("--save_path", default="", help="the file to be made; PREFIX_consolidated.pth by default")
    given = parser.parse_args(arguments)
    _, path = consolidate_sharded_model_checkpoints(given.ckpt_prefix, given.ckpt_suffix, given.save_path)
    print(f"saved the consolidated model to {path}")


if __name__ == "__main__":
    main()
