from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.atomic import replace_file


@pytest.mark.parametrize(
    ("umask", "mode", "expected"), [(0o022, None, 0o644), (0o077, None, 0o600), (0o022, 0o600, 0o600)]
)
def test_the_mode_is_what_is_asked_for_else_what_the_umask_lets(
    tmp_path: Path, umask: int, mode: int | None, expected: int
) -> None:
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "deep" / "file", b"x", mode=mode, last=True)
    finally:
        os.umask(before)
    assert (tmp_path / "deep" / "file").read_bytes() == b"x"
    assert (tmp_path / "deep" / "file").stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("stops_at", ["open", "fsync", "fchmod"])
def test_when_it_fails_the_old_file_stays_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, stops_at, fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new", mode=0o644)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
