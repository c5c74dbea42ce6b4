from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from matrix.errors import BusyError, NoSpaceError, UsageError
from matrix.provision.latch import Latch, Waiting, is_held, take


@dataclass
class Clock:
    """A clock that moves only by sleeping; `then` happens at the end of a sleep."""

    now: float = 0.0
    then: Iterator[object] = field(default_factory=lambda: iter(()))

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self.then, None)


def grab(
    path: Path, *, shared: bool, patience: float = 0.0, clock: Clock | None = None, said: list[str] | None = None
) -> Latch:
    clock = clock or Clock()
    say = (said if said is not None else []).append
    waiting = Waiting(path=path, what="The thing", patience_s=patience, say=say, clock=clock.read, sleep=clock.sleep)
    return take(waiting, shared=shared)


@pytest.mark.parametrize(
    ("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False), (False, False, False)]
)
def test_users_share_and_builders_do_not(tmp_path: Path, first: bool, second: bool, both: bool) -> None:
    path = tmp_path / "deep" / "latch"
    held = grab(path, shared=first)
    assert is_held(path)
    if both:
        grab(path, shared=second).drop()
    else:
        with pytest.raises(BusyError, match="The thing is in use"):
            grab(path, shared=second)
    held.drop()
    held.drop()
    assert not is_held(path)
    grab(path, shared=second).drop()


def test_waiting_tells_who_has_it_now_and_then(tmp_path: Path) -> None:
    held = grab(tmp_path / "latch", shared=False)
    said: list[str] = []
    with pytest.raises(BusyError, match=rf"process {os.getpid()} took it \d+ s ago") as caught:
        grab(tmp_path / "latch", shared=True, patience=40, said=said)
    assert "waited for, 40 s" in str(caught.value)
    assert len(said) == 3
    assert said[0].startswith(f"waiting for The thing: another run has it (process {os.getpid()}")
    held.drop()


def test_who_waits_gets_it_when_it_is_let_go(tmp_path: Path) -> None:
    held = grab(tmp_path / "latch", shared=False)

    def later() -> Iterator[None]:
        yield
        held.drop()
        yield

    grab(tmp_path / "latch", shared=False, patience=10, clock=Clock(then=later())).drop()


def test_a_builder_becomes_a_user(tmp_path: Path) -> None:
    held = grab(tmp_path / "latch", shared=False)
    held.share()
    assert held.shared
    grab(tmp_path / "latch", shared=True).drop()
    held.drop()


def test_a_latch_that_was_removed_guards_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latch"
    held = grab(path, shared=False)
    path.unlink()
    fresh = grab(path, shared=False)
    assert os.fstat(fresh.fd).st_ino != os.fstat(held.fd).st_ino
    held.drop()
    assert is_held(path)
    fresh.drop()
    # Removed between opening and locking: it is opened again.
    real, removed = os.open, list[Path]()

    def opened(*args: object, **more: object) -> int:
        fd = real(*args, **more)  # type: ignore[arg-type]
        if not removed:
            removed.append(path)
            path.unlink()
        return fd

    monkeypatch.setattr("matrix.provision.latch.os.open", opened)
    grab(path, shared=False, patience=1).drop()
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff"])
def test_who_holds_it_may_be_unknown(tmp_path: Path, content: bytes) -> None:
    held = grab(tmp_path / "latch", shared=True)
    (tmp_path / "latch").write_bytes(content)
    with pytest.raises(BusyError, match=r"^The thing is in use\.\n"):
        grab(tmp_path / "latch", shared=False)
    held.drop()


def test_a_note_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matrix.provision.latch.os.ftruncate", full)
    grab(tmp_path / "latch", shared=False).drop()


@pytest.mark.parametrize(("code", "error"), [(28, NoSpaceError), (122, NoSpaceError), (30, UsageError)])
def test_a_latch_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("matrix.provision.latch.os.open", fails)
    with pytest.raises(error):
        grab(tmp_path / "latch", shared=False)


def test_what_never_was_is_not_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "latch")
