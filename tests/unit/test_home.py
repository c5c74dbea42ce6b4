"""Where things are kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from matrix.errors import NoSpaceError, UsageError
from matrix.home import VARIABLE, Home


def test_what_is_given_comes_before_the_variable_before_the_users_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Home.find(None) == Home(store=tmp_path / "data/verl-matrix/store", cache=tmp_path / "cache/verl-matrix")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert Home.find(None) == Home(store=tmp_path / "variable/store", cache=tmp_path / "variable/cache")
    assert Home.find(str(tmp_path / "given")) == Home(store=tmp_path / "given/store", cache=tmp_path / "given/cache")


def test_a_tilde_and_a_relative_path_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Home.find("~/kept").store == tmp_path / "kept" / "store"
    assert Home.find("kept").cache == tmp_path / "kept" / "cache"


def test_prepare_makes_both_folders_and_may_be_asked_again(tmp_path: Path) -> None:
    home = Home.find(str(tmp_path / "deep" / "kept"))
    home.prepare()
    home.prepare()
    assert home.store.is_dir()
    assert home.cache.is_dir()


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(UsageError, match=r"Nothing can be kept in .*Not a directory"):
        Home.find(str(tmp_path / "kept")).prepare()


def test_a_folder_without_rights_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by chmod: root, as whom a CI runs, may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="it is not writable"):
        Home.find(str(tmp_path)).prepare()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(NoSpaceError, match="No room is left"):
        Home.find(str(tmp_path)).prepare()
