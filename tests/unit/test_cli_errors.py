"""Bad surroundings: spoiled files, no room, locks, interrupts; each has its exit code, and nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix import store as store_module
from matrix.cli import commands
from matrix.cli.main import main
from matrix.errors import CorruptFileError, MatrixError, ToolError
from matrix.store import Store
from reports.front import TerminalFront
from tests.unit import cli_home
from tests.unit.cli_home import ONE, told
from tests.unit.cli_stack import CELLS, Said, axes_text, check_golden, steady
from tests.unit.http_server import Site

shared = pytest.fixture(scope="module")(cli_home.served)
site = pytest.fixture(cli_home.served)
bare = pytest.fixture(scope="module")(cli_home.bare)
home = pytest.fixture(cli_home.home)
_settled = pytest.fixture(autouse=True)(cli_home.settled)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in content)


def _empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("spoil", [_cut, _flip, _empty])
def test_a_cache_that_is_spoiled_is_read_anew(shared: Site, home: Path, spoil: Callable[[bytes], bytes]) -> None:
    before = told(f"check {ONE} --json", home, shared.url)
    spoiled = [path for path in (home / "kept" / "cache" / "index-1").rglob("*") if path.is_file()]
    assert len(spoiled) > 5
    for path in spoiled:
        path.write_bytes(spoil(path.read_bytes()))
    after = told(f"check {ONE} --json --again", home, shared.url)
    assert after.code == 0
    assert [cell["status"] for cell in json.loads(after.out)["cells"]] == [
        cell["status"] for cell in json.loads(before.out)["cells"]
    ]


def test_a_stored_detail_that_is_spoiled_is_told_and_asked_anew(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LARGE_BYTES", 200)
    assert told(f"check {ONE}", home, shared.url).code == 0
    details = list((home / "kept" / "store" / "details").rglob("*.json.gz"))
    assert details
    for path in details:
        path.write_bytes(_flip(path.read_bytes()))
    heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 7
    assert "run again" in heard.err
    while heard.code == 7:
        heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 0


def test_a_line_of_the_store_that_is_spoiled_is_passed_over_and_told(shared: Site, home: Path) -> None:
    told(f"check {ONE}", home, shared.url)
    path = home / "kept" / "store" / "observations.jsonl"
    path.write_bytes(b'{"half": \n' + path.read_bytes())
    heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 0
    assert "note       1 line of observations.jsonl passed over" in heard.out


def test_a_store_of_a_newer_release_is_left_alone(shared: Site, home: Path) -> None:
    path = home / "kept" / "store" / "observations.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 99}\n', encoding="utf-8")
    heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 11
    check_golden("error-newer-store.txt", steady(heard.text, (home, "HOME")))
    assert path.read_text(encoding="utf-8") == '{"schema": 99}\n'


def test_no_room_in_the_store_ends_the_run_and_keeps_what_was_finished(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(fd: int, block: bytes) -> None:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(os.write(fd, block))

    monkeypatch.setattr(store_module, "_write_whole", write)
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 8
    check_golden("error-no-room.txt", "".join(line for line in _errors(heard, home)))
    assert len(Store(home / "kept" / "store")) == 3
    monkeypatch.undo()
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 0
    assert heard.err.count("(stored)") == 3


def _errors(heard: Said, home: Path) -> list[str]:
    """Return the error message alone, without the progress before it."""
    text = steady(heard.err, (home, "HOME"))
    return [text[text.index("error:") :]]


@pytest.mark.parametrize("place", ["index-1", "out"])
def test_no_room_elsewhere_has_the_same_code(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    real = os.fsync

    def full(fd: int) -> None:
        if f"/{place}/" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 8
    assert "Free some space" in heard.err


@pytest.mark.parametrize("words", [f"check {ONE}", "run --cells-file HOME/cells.toml", "grid", f"surface {ONE}"])
def test_a_home_that_cannot_be_used_is_told_before_anything_is_asked(tmp_path: Path, words: str) -> None:
    (tmp_path / "cells.toml").write_text(CELLS, encoding="utf-8")
    (tmp_path / "kept").write_text("a file", encoding="utf-8")
    heard = told(words, tmp_path, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    check_golden("error-home.txt", steady(heard.text, (tmp_path, "HOME")))


@pytest.mark.parametrize("words", ["run --cells-file HOME/cells.toml", "grid"])
def test_an_out_folder_that_cannot_be_is_told_before_anything_is_asked(home: Path, words: str) -> None:
    (home / "out").write_text("a file", encoding="utf-8")
    heard = told(f"{words} --out HOME/out/deep", home, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    check_golden("error-out.txt", steady(heard.text, (home, "HOME")))


def test_a_report_that_cannot_be_written_is_told_and_what_was_found_is_kept(shared: Site, home: Path) -> None:
    (home / "out" / "report.json").mkdir(parents=True)
    heard = told("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 2
    assert "`verl-matrix report` writes the report again" in heard.err
    assert len(Store(home / "kept" / "store")) == 10


def test_a_locked_store_is_told(shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.1)
    folder = home / "kept" / "store"
    folder.mkdir(parents=True)
    with filelock.FileLock(folder / "observations.lock"):
        heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == 9
    check_golden("error-locked.txt", steady(heard.text, (home, "HOME")))


def test_offline_without_a_cache_says_so_and_with_one_answers(site: Site, home: Path) -> None:
    heard = told(f"check {ONE} --offline", home, site.url)
    assert heard.code == 5
    check_golden("error-offline.txt", steady(heard.text))
    assert told(f"check {ONE}", home, site.url).code == 0
    asked = len(site.asked)
    assert told(f"check {ONE} --offline", home, site.url).code == 0
    assert len(site.asked) == asked


def test_axes_that_cannot_be_rewritten_stay_as_they_are(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "axes.toml"

    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("matrix.update.replace_file", refuse)
    heard = told("update", home, site.url)
    assert heard.code == 3
    assert path.read_text(encoding="utf-8") == axes_text()
    check_golden("error-axes-read-only.txt", steady(heard.text, (home, "HOME")))


@pytest.mark.parametrize(
    "words",
    [
        f"check {ONE}",
        f"surface {ONE}",
        "run --cells-file HOME/cells.toml --out HOME/out",
        "grid --x-only 0.9.1 --y-only 0.2{4,5}.0 --out HOME/out",
        "bisect --axis vllm --with verl==0.9.1 --good 0.24.0 --bad 0.27.0",
        "update --check",
    ],
)
def test_an_interrupt_is_told_and_is_no_verdict(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("matrix.surface.check.SurfaceChecker.observe", interrupt)
    monkeypatch.setattr("matrix.update.observed", interrupt)
    heard = told(words, home, shared.url)
    assert heard.code == 130
    assert heard.err.endswith("interrupted; what was finished is kept\n")
    assert (words.startswith(("run", "grid"))) == bool(heard.out), "what was finished of many cells is shown"


@pytest.mark.parametrize("words", ["run --cells-file HOME/cells.toml --out HOME/out", "grid --out HOME/out"])
def test_a_run_in_which_nothing_ran_is_a_failure(
    home: Path, shared: Site, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def broken(*_: object) -> None:
        raise ToolError("uv failed.", then="Upgrade it.")

    def spoiled(*_: object) -> None:
        raise CorruptFileError("A wheel is broken.", then="Run again.")

    monkeypatch.setattr("matrix.resolve.resolver.Resolver.question", broken)
    monkeypatch.setattr("matrix.surface.check.SurfaceChecker.question", spoiled)
    heard = told(words, home, shared.url)
    assert heard.code == 10
    assert "Nothing ran: 0 of" in heard.err
    assert "uv failed" in heard.err


class _Closed(io.StringIO):
    """A stream that cannot be written, and why."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.EPIPE, 141, ""),
        (errno.ENOSPC, 8, "error: The output cannot be written: no room is left.\nFree some space.\n"),
        (errno.EIO, 70, "verl-matrix itself failed"),
    ],
)
def test_output_that_cannot_be_written(
    home: Path, capsys: pytest.CaptureFixture[str], number: int, code: int, words: str
) -> None:
    with contextlib.redirect_stdout(_Closed(number)):
        assert main(["run", "--list", "--cells-file", str(home / "cells.toml")], TerminalFront) == code
    assert words in capsys.readouterr().err


def test_a_fault_of_the_program_is_no_verdict(shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise AssertionError("two and two is five")

    monkeypatch.setitem(commands.COMMANDS, "check", fail)
    heard = told(f"check {ONE}", home, shared.url)
    assert heard.code == MatrixError.exit_code
    assert "two and two is five" in heard.err
    assert heard.err.endswith("Please report it, with the lines above and the command line.\n")
