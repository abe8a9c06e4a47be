"""Whose packages are loaded. A package holds machine code: whoever wrote it, runs code in the process that loads it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

_BYTES = 32


class UntrustedPackageError(ValueError):
    """Nothing says that the package comes from somebody whose code may run here."""


def digest(content: bytes) -> str:
    """What names a package: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def sign(content: bytes, key: bytes | None) -> str:
    """HMAC-SHA256 (RFC 2104) of a package's description, in hexadecimal digits.

    Args:
        key: None for the user's own (`own_key`).
    """
    return hmac.new(own_key() if key is None else key, content, "sha256").hexdigest()


def check(content: bytes, signature: str, name: str, expected: str | None, key: bytes | None) -> None:
    """Makes sure that a package may be loaded.

    Args:
        content: its description, which has the digest of its code.
        signature: what it says of itself.
        name: of the file, for messages.
        expected: the digest that the caller was told.
        key: what the caller has it signed with; None for the user's own.

    Raises:
        UntrustedPackageError: it is another package than that, or is not signed with the key.
    """
    if expected is not None:
        if not hmac.compare_digest(digest(content), expected):
            raise UntrustedPackageError(f"{name} is not the package {expected}: it is {digest(content)}")
        return
    if not hmac.compare_digest(sign(content, key), signature):
        whose = "the user's own key, which is made on each machine by itself" if key is None else "the key given"
        raise UntrustedPackageError(
            f"{name} is not signed with {whose}. It holds machine code, which loading it runs. If you trust where it "
            "comes from, pass the digest that package() returned there, load(path, digest='sha256:...'), or the same "
            "key= to both"
        )


def own_key() -> bytes:
    """The user's own key, which nobody else can read; made when it is first asked for.

    Raises:
        OSError: it cannot be read or made.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(base) / "lazy_runtime" / "package.key"
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_BYTES))
    try:
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(made, path)
    finally:
        made.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != _BYTES:
        raise OSError(f"{path} is no key of {_BYTES} bytes: remove it, and packages signed with it are not trusted")
    return key
