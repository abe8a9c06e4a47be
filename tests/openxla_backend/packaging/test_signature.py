import stat

import pytest

from openxla_backend.packaging import signature
from openxla_backend.packaging.signature import UntrustedPackageError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_the_users_own_key_is_made_once_and_nobody_else_reads_it(home):
    key = signature.own_key()
    assert signature.own_key() == key
    assert len(key) == 32
    (path,) = (home / "lazy_runtime").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_key_is_refused(home):
    signature.own_key()
    path = home / "lazy_runtime" / "package.key"
    path.write_bytes(b"short")
    with pytest.raises(OSError, match=r"package\.key is no key of 32 bytes: remove it"):
        signature.own_key()


def test_who_has_the_key_is_trusted(home):
    content = b"a package"
    signature.check(content, signature.sign(content, None), "p", None, None)
    signature.check(content, signature.sign(content, b"ours"), "p", None, b"ours")
    signature.check(content, "no signature", "p", signature.digest(content), None)


@pytest.mark.parametrize(
    ("signed", "key", "expected", "message"),
    [
        (None, b"ours", None, "p is not signed with the key given"),
        (b"theirs", None, None, r"p is not signed with the user's own key.*pass the digest"),
        (b"theirs", b"ours", None, "p is not signed with the key given"),
        (None, None, "sha256:00", "p is not the package sha256:00: it is sha256:"),
    ],
)
def test_others_are_not(signed, key, expected, message, home):
    content = b"a package"
    with pytest.raises(UntrustedPackageError, match=message):
        signature.check(content, signature.sign(content, signed), "p", expected, key)


def test_a_changed_package_is_not(home):
    with pytest.raises(UntrustedPackageError):
        signature.check(b"another", signature.sign(b"a package", None), "p", None, None)
