from __future__ import annotations

from pathlib import Path

import pytest

from matrix.errors import (
    CorruptFileError,
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    ProvisionError,
    ToolError,
)
from matrix.provision.installer import Installer, cache_folder
from matrix.provision.refusal import mismatched, refusal
from matrix.resolve.process import Ended
from tests.unit.provision_stack import fake_uv

HASH = "error: Failed to download `ray==1`\n  cause: Hash mismatch for `ray==1`\n\n  Expected:\n    sha256:1\n"
TEXTS: dict[str, tuple[str, type[MatrixError], str]] = {
    "hash": (HASH, CorruptFileError, "The file of ray==1 has not the digest"),
    "disk": ("error: Failed\n  cause: No space left on device (os error 28)", NoSpaceError, "ran full"),
    "quota": ("error: Disk quota exceeded (os error 122)", NoSpaceError, "ran full"),
    "offline": (
        "error: Failed to download `a==1`\n  cause: Network connectivity is disabled, but the requested data wasn't",
        IndexUnreachableError, "--offline",
    ),
    "dns": ("error: Failed to fetch: https://x\n  cause: dns error", IndexUnreachableError, "Check the network"),
    "gone": ("error: HTTP status client error (404 Not Found) for url (x)", IndexUnreachableError, "could not fetch"),
    "build": ("error: Failed to build `x==1`\n cause: The build backend returned an error", ProvisionError, "be built"),
    "wheel": (
        "error: Package `x` can't be installed because it doesn't have a wheel for the current platform\n\nhint: y",
        ToolError, "does not fit this machine: Package `x`",
    ),
    "no build": ("error: `x` is marked as `--no-build` but has no binary distribution", ToolError, "not fit this"),
    "name": ("error: Wheel filename `a.whl` does not match package name `b`", ProvisionError, "not what the"),
    "version": ("error: x\n cause: Wheel version does not match filename (2 != 1)", ProvisionError, "not what the"),
    "zip": ("error: Failed to extract archive: a.whl", ProvisionError, "not what the lock says"),
    "anything else": ("error: unexpected argument '--x' found", ToolError, "failed with exit code 2"),
    "no error at all": ("", ToolError, "failed with exit code 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_what_uv_says_and_whose_fault_it_is(name: str) -> None:
    text, kind, words = TEXTS[name]
    asides = "warning: The `--pylock` option is experimental\nUsing Python 3.12.1\nDEBUG No space left on device\n"
    error = refusal("uv pip sync", Ended(code=2, stdout="", stderr=asides + text))
    assert type(error) is kind
    assert words in str(error)
    assert "experimental" not in str(error)


def test_one_that_was_stopped() -> None:
    error = refusal("uv pip sync", Ended(code=None, stdout="", stderr="Downloading torch"))
    assert isinstance(error, ToolError)
    assert "was stopped before its end" in str(error)


def test_the_package_whose_digest_differs() -> None:
    assert mismatched(HASH) == "ray==1"
    assert mismatched("error: something") == ""


def installer(uv: Path) -> Installer:
    return Installer(uv=uv, cache=uv.parent / "cache", index_url="https://index/simple")


def test_uv_that_fails_or_is_none(tmp_path: Path) -> None:
    uv = fake_uv(tmp_path / "bin", "echo 'error: broken' >&2; exit 2")
    with pytest.raises(ToolError, match="uv --version"):
        installer(uv).version()
    with pytest.raises(ToolError, match="uv venv"):
        installer(uv).venv(Path("/usr/bin/python3"), tmp_path / "e")
    uv.chmod(0o644)
    with pytest.raises(ToolError, match="could not be started"):
        installer(uv).version()


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [("given", "named", "given"), (None, "named", "named"), (None, None, "cache/uv"), (None, "", "cache/uv")],
)
def test_where_uvs_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("UV_CACHE_DIR", variable and str(tmp_path / variable))
    assert cache_folder(tmp_path / given if given else None, tmp_path / "cache") == tmp_path / expected
