"""The file: one in safetensors' format, so that tools for weights read it and nothing in it is unpickled.

Its tensors are the weights, and the program's machine code as bytes (`program`). The metadata of its header holds the
description of the package as JSON, and its signature. The description names the code by its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lazy_runtime.common import whole_files

from . import signature

#: Grows with each change of what the description says.
FORMAT = 1

_PROGRAM = "program"
_DESCRIPTION, _SIGNATURE = "openxla.package", "openxla.signature"


class PackageError(ValueError):
    """A file that is no package, is torn, or was made for something else than what is here."""


class Contents(NamedTuple):
    """What a package holds.

    Attributes:
        description: what JSON can say.
        program: the machine code.
        weights: CPU tensors by name; read from a file, they are its memory.
    """

    description: dict[str, Any]
    program: bytes
    weights: Mapping[str, torch.Tensor]


def write(path: str | os.PathLike[str], contents: Contents, key: bytes | None) -> str:
    """Writes a package as a whole or not at all; returns its digest.

    Args:
        key: what it is signed with; None for the user's own.
    """
    from safetensors.torch import save_file

    tensors, described = _parts(contents)
    metadata = {_DESCRIPTION: described.decode(), _SIGNATURE: signature.sign(described, key)}
    with whole_files.replacing(path) as unfinished:
        with open(unfinished, "wb") as file:
            mode = os.fstat(file.fileno()).st_mode
        save_file(tensors, unfinished, metadata)
        os.chmod(unfinished, mode)  # as other files of the user's: safetensors makes one that nobody else reads
    return signature.digest(described)


def dump(contents: Contents) -> bytes:
    """A package as bytes, unsigned: a part of a file that somebody else looks after."""
    from safetensors.torch import save

    tensors, described = _parts(contents)
    return save(tensors, {_DESCRIPTION: described.decode()})


def read(path: str | os.PathLike[str], digest: str | None, key: bytes | None) -> Contents:
    """Reads a package that is trusted.

    Args:
        digest, key: see `signature.check`.

    Raises:
        FileNotFoundError: there is none.
        PackageError: it is no package, torn, or of another format.
        signature.UntrustedPackageError: nothing says that its code may run here.
    """
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if not os.path.exists(name):
        raise FileNotFoundError(f"there is no package {name}")
    try:
        with safe_open(name, "pt") as file:
            metadata = file.metadata() or {}
            if _DESCRIPTION not in metadata:
                raise PackageError(f"{name} is no package: it has no description ({_DESCRIPTION})")
            described = metadata[_DESCRIPTION].encode()
            signature.check(described, metadata.get(_SIGNATURE, ""), name, digest, key)
            tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118  it is no dict
    except SafetensorError as error:
        raise PackageError(f"{name} is no package, or is torn: {error}") from error
    return _contents(described, tensors, name)


def parse(data: bytes) -> Contents:
    """What `dump` has made bytes of.

    Raises:
        PackageError: they are of another format.
    """
    from safetensors.torch import load

    length = int.from_bytes(data[:_LENGTH], "little")  # of the header: https://github.com/huggingface/safetensors
    described = json.loads(data[_LENGTH : _LENGTH + length])["__metadata__"][_DESCRIPTION].encode()
    return _contents(described, load(data), "the saved function")


_LENGTH = 8


def _parts(contents: Contents) -> tuple[dict[str, torch.Tensor], bytes]:
    """The tensors of a file, and its description as text."""
    code = hashlib.sha256(contents.program).hexdigest()
    described = json.dumps({**contents.description, "format": FORMAT, "code": code}, separators=(",", ":"))
    program = torch.frombuffer(bytearray(contents.program), dtype=torch.uint8)
    return {_PROGRAM: program, **contents.weights}, described.encode()


def _contents(described: bytes, tensors: dict[str, torch.Tensor], name: str) -> Contents:
    description = json.loads(described)
    if description["format"] != FORMAT:
        raise PackageError(f"{name} has format {description['format']}, this version reads {FORMAT}: package it again")
    program = tensors.pop(_PROGRAM).numpy().tobytes()
    if hashlib.sha256(program).hexdigest() != description["code"]:
        raise PackageError(f"{name} is damaged: its code is not what its description says")
    return Contents(description, program, tensors)
