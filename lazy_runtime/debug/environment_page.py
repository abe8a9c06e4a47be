"""`docs/environment.md`, made of the table of variables.

python -m lazy_runtime.debug.environment_page > docs/environment.md
"""

from __future__ import annotations

from ..common.environment import FALSE, SWITCH, TABLE, TRUE


def markdown() -> str:
    """`docs/environment.md`."""
    lines = [
        "# Environment variables",
        "",
        "Names and meaning are PyTorch/XLA's where it has them. A value that is not legal is an error at the first use",
        "of xla; unset and empty mean the default. *Start* variables are read once, at the process's first use of xla;",
        "*use* variables whenever they matter, so a program may set them in `os.environ` as it runs.",
        "",
        "This page is made by `python -m lazy_runtime.debug.environment_page`.",
        "",
        "| variable | values | default | read | effect | cost |",
        "|---|---|---|---|---|---|",
    ]
    for variable in TABLE:
        default = variable.default
        shown = "" if default is None else int(default) if isinstance(default, bool) else default
        legal = "0, 1" if variable.legal == SWITCH else variable.legal
        cells = f"`{variable.name}`", legal, str(shown), variable.read, variable.effect, variable.cost
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"A switch (0, 1) also takes {', '.join(FALSE[1:] + TRUE[1:])}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")
