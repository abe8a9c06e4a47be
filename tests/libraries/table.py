"""docs/libraries.md, from the report of a run of these tests: `python -m tests.libraries.table report.xml`."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "libraries.md"

#: The library that a file's tests are about. `test_small_models.py` has one of each name.
LIBRARIES = {
    "test_accelerate": "accelerate",
    "test_diffusers": "diffusers",
    "test_generate": "transformers",
    "test_lightning": "lightning",
    "test_trainer": "transformers",
    "test_trainer_ranks": "transformers",
}

#: Names of distributions that are not those of their modules.
_DISTRIBUTIONS = {"ignite": "pytorch-ignite"}

_INTRODUCTION = """\
# Libraries that run as they are

What `make test-libraries` has run: programs of users of these libraries, by `python -m lazy_runtime program.py`, and on
the CPU by plain `python`, with equal losses and outputs. The tests stand in `tests/libraries/`, the programs in
`tests/libraries/programs/`. Written by that command; do not edit.

"""


def write(report: Path, page: Path = PAGE) -> None:
    """Writes the page from pytest's report in the form of JUnit."""
    found: dict[str, list[str]] = defaultdict(list)
    for library, test, outcome in _cases(report):
        found[library].append(test if outcome == "passed" else f"**{test} ({outcome})**")
    lines = ["| library | version | passed |", "|---|---|---|"]
    lines += [f"| {name} | {_version(name)} | {', '.join(tests)} |" for name, tests in sorted(found.items())]
    others = ", ".join(f"{name} {_version(name)}" for name in ("torch", "jax", "jaxlib"))
    page.write_text(f"{_INTRODUCTION}{chr(10).join(lines)}\n\nPython {sys.version.split()[0]}, {others}.\n")


def _cases(report: Path) -> Iterator[tuple[str, str, str]]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        test = case.attrib["name"].removeprefix("test_")
        file = next(part for part in case.attrib["classname"].split(".") if part.startswith("test_"))
        if file in LIBRARIES:
            name, _, parameters = test.partition("[")
            option = f" ({parameters.removesuffix(']')})" if parameters else ""
            yield LIBRARIES[file], name.replace("_", " ") + re.sub(r"-options\d+", "", option), outcome
        elif file == "test_small_models":
            yield test.partition("[")[2].partition("-")[0], "a small model", outcome


def _version(name: str) -> str:
    return importlib.metadata.version(_DISTRIBUTIONS.get(name, name))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
