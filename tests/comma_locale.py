"""A locale of decimal commas for tests, which needs no locale of the system's: the file that localedef would write."""

from __future__ import annotations

import struct
from pathlib import Path

NAME = "comma"

# glibc's locale/localeinfo.h: the magic number of LC_NUMERIC, and the number of its fields.
_MAGIC, _FIELDS = 0x20031115 ^ 1, 6


def write(folder: Path) -> dict[str, str]:
    """Writes the locale.

    Returns:
        The environment variables under which a new process finds it as `NAME`, category `LC_NUMERIC`.
    """
    decimal_point, thousands_separator, grouping, codeset = b",\0", b".\0", b"\3\0", b"UTF-8\0"
    wide = struct.pack("<2I", ord(","), ord("."))  # glibc reads them as words, so they begin at a multiple of four
    fields = [decimal_point, thousands_separator, grouping + b"\0\0", wide[:4], wide[4:], codeset]
    header = 8 + 4 * _FIELDS
    offsets = [header + sum(map(len, fields[:i])) for i in range(_FIELDS)]
    (folder / NAME).mkdir()
    (folder / NAME / "LC_NUMERIC").write_bytes(struct.pack("<8I", _MAGIC, _FIELDS, *offsets) + b"".join(fields))
    return {"LOCPATH": str(folder)}
