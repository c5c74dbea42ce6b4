"""Bad input and bad surroundings: each has its exit code and a message that says what to do, and nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from matrix import store as store_module
from matrix.cli import commands, wiring
from matrix.cli.main import main
from matrix.errors import CorruptFileError, MatrixError, ToolError
from matrix.index.fetch import Limits
from matrix.store import Store
from reports.front import TerminalFront
from tests.unit.cli_stack import CELLS, Said, axes_text, check_golden, record_axes, said, steady, stocked
from tests.unit.http_server import Site

ONE = "verl==0.9.1 vllm==0.24.0"
WHEEL = "/files/vllm-0.24.0-cp38-abi3-manylinux_2_31_x86_64.whl"


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with stocked() as site:
        yield site


@pytest.fixture
def site() -> Iterator[Site]:
    """Serve a stack of its own to a test that spoils it."""
    with stocked() as site:
        yield site


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the bare interpreter that uv is given, which takes the longest of a first run."""
    folder = tmp_path_factory.mktemp("bare")
    with stocked() as site:
        _said("check vllm==0.24.0 --tiers resolve", folder, site.url)
    return folder / "kept" / "cache" / "resolve"


@pytest.fixture
def home(tmp_path: Path, bare: Path) -> Path:
    """Return a folder with a cells file and, in `kept`, a home that holds nothing but a bare interpreter."""
    (tmp_path / "cells.toml").write_text(CELLS, encoding="utf-8")
    for folder in bare.glob("bare-*"):
        shutil.copytree(folder, tmp_path / "kept" / "cache" / "resolve" / folder.name, symlinks=True)
    return tmp_path


@pytest.fixture(autouse=True)
def _settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the axes be small and the patience short."""
    record_axes(monkeypatch, tmp_path / "axes.toml")
    monkeypatch.setattr(wiring, "Limits", functools.partial(Limits, tries=2, backoff=0.01))


def _said(words: str, home: Path, url: str) -> Said:
    command, *rest = words.replace("HOME", str(home)).split()
    index = () if command == "report" else ("--index-url", url)
    return said(command, "--home", str(home / "kept"), *index, *rest)


WORDS = {
    "unknown-package": (2, "check verll==0.9.1"),
    "unknown-package-without-a-near-one": (2, "check numpy==2.0"),
    "unknown-version": (4, "surface verl==0.9.1 vllm==0.24.9"),
    "malformed-specifier": (2, "check vllm=0.24"),
    "malformed-version": (2, "check vllm==0,24"),
    "no-spec": (2, "check"),
    "unknown-command": (2, "chekc verl==0.9.1"),
    "unknown-option": (2, "check verl==0.9.1 --ofline"),
    "unknown-tier": (2, "check verl==0.9.1 --tiers resolv"),
    "a-tier-that-cannot-be-tried": (2, "check verl==0.9.1 --tiers bench"),
    "no-tier": (2, "check verl==0.9.1 --tiers ,"),
    "no-workers": (2, "check verl==0.9.1 --workers 0"),
    "no-date": (2, "check verl==0.9.1 --exclude-newer soon"),
    "no-python": (2, "check verl==0.9.1 --python 3"),
    "no-platform": (2, "check verl==0.9.1 --platform win_amd64"),
    "malformed-override": (2, "check verl==0.9.1 --override numpy<<2"),
    "no-address": (2, "check verl==0.9.1 --index-url pypi"),
    "cells-that-nobody-planned": (2, "run --cells verl0.9.1-vllm0.42* --cells-file HOME/cells.toml"),
    "cells-far-from-everything": (2, "run --cells zzz --cells-file HOME/cells.toml"),
    "a-group-that-nobody-named": (2, "run --cells group:cii --cells-file HOME/cells.toml"),
    "an-open-brace": (2, "run --cells verl{0.9.1 --cells-file HOME/cells.toml"),
    "unknown-status": (2, "run --fail-on borken --cells-file HOME/cells.toml"),
    "surface-of-an-open-axis": (2, "surface verl==0.9.1 vllm>=0.24"),
    "surface-of-verl-alone": (2, "surface verl==0.9.1"),
    "surface-without-verl": (2, "surface vllm==0.24.0 torch==2.11.0"),
    "bisect-with-ends-swapped": (2, "bisect --axis vllm --with verl==0.9.1 --good 0.27.0 --bad 0.24.0"),
    "bisect-with-a-bad-good-end": (2, "bisect --axis vllm --with verl==0.9.1 --good 0.27.0 --bad 0.28.0"),
    "bisect-from-an-unknown-release": (4, "bisect --axis vllm --with verl==0.9.1 --good 0.24.9 --bad 0.27.0"),
    "bisect-of-an-unknown-axis": (2, "bisect --axis vlm --with verl==0.9.1 --good 0.24.0 --bad 0.27.0"),
    "bisect-of-a-fixed-axis": (2, "bisect --axis vllm --with vllm==0.24.0 --good 0.24.0 --bad 0.27.0"),
    "grid-of-one-axis": (2, "grid --x verl --y verl"),
    "grid-of-no-release": (2, "grid --x-only 7.*"),
    "report-of-nothing": (10, "report --cells-file HOME/cells.toml"),
    "check-of-nothing": (10, "check vllm==0.24.0 --tiers surface"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_make_no_sense_are_told_with_what_to_do(shared: Site, home: Path, name: str) -> None:
    code, words = WORDS[name]
    heard = _said(words, home, shared.url)
    assert heard.code == code
    assert heard.out == ""
    assert len(heard.err.splitlines()) >= 2, "a message says what happened and what to do"
    check_golden(f"error-{name}.txt", steady(heard.text, (home, "HOME")))


NINES = "9" * 3_000
LONG = {
    "a word longer than any path": (2, f"check verl=={NINES * 40}"),
    "a version": (2, f"check verl=={NINES}"),
    "a version with the others": (2, f"check verl==0.9.1 vllm=={NINES}"),
    "a number": (2, f"check {ONE} --workers {NINES}"),
    "hours that no clock counts": (2, f"check {ONE} --max-age 99999999999"),
    "a date": (2, f"check {ONE} --exclude-newer {NINES}"),
    "a python": (2, f"check {ONE} --python 3.{NINES}"),
    "a platform": (2, f"check {ONE} --platform manylinux_2_{NINES}"),
    "an override": (2, f"check {ONE} --override numpy=={NINES}"),
    "a pattern": (2, f"run --cells {NINES} --cells-file HOME/cells.toml"),
    "an option": (2, f"check {ONE} --{NINES}"),
    "a command": (2, NINES),
    "an end of a bisection": (2, f"bisect --axis vllm --with verl==0.9.1 --good {NINES} --bad 0.27.0"),
}


@pytest.mark.parametrize("name", LONG)
def test_words_of_any_length_are_refused_and_not_said_again_in_full(shared: Site, home: Path, name: str) -> None:
    code, words = LONG[name]
    heard = _said(words, home, shared.url)
    assert (heard.code, heard.out) == (code, "")
    assert len(heard.err) < 1_000
    assert "Traceback" not in heard.err


FILES: dict[str, tuple[int, str | None]] = {
    "missing": (3, None),
    "not-toml": (3, "schema = 1\n[[cell]\n"),
    "no-schema": (3, CELLS.replace("schema = 1", "")),
    "newer-schema": (11, CELLS.replace("schema = 1", "schema = 7")),
    "mistyped": (3, CELLS.replace('reason = "An image."', "reason = 3")),
    "misspelled": (3, CELLS.replace("groups", "gruops")),
    "no-version": (3, CELLS.replace('vllm = "0.24.0"', 'vllm = "0.24,0"')),
    "empty": (10, "schema = 1\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_data_file_that_is_wrong_is_told_by_path_and_field(shared: Site, home: Path, name: str) -> None:
    code, text = FILES[name]
    (home / "cells.toml").unlink()
    if text is not None:
        (home / "cells.toml").write_text(text, encoding="utf-8")
    heard = _said("run --list --cells-file HOME/cells.toml", home, shared.url)
    assert heard.code == code
    check_golden(f"error-file-{name}.txt", steady(heard.text, (home, "HOME")))


def test_a_data_file_that_is_a_folder_or_not_text_is_told_too(shared: Site, home: Path) -> None:
    (home / "folder").mkdir()
    (home / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("folder", "bytes"):
        heard = _said(f"run --list --cells-file HOME/{name}", home, shared.url)
        assert heard.code == 3
        assert str(home / name) in heard.err


def _closed_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_an_index_that_refuses_is_no_verdict(home: Path) -> None:
    heard = _said(f"check {ONE}", home, f"http://127.0.0.1:{_closed_port()}/simple")
    assert (heard.code, heard.out) == (5, "")
    check_golden("error-index-refuses.txt", steady(heard.text))


def test_an_index_that_says_nothing_is_given_up_as_uv_does(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    monkeypatch.setattr("tests.unit.http_server.SLOW", 1.2)
    site.faults["/simple/vllm/"] = ["slow*"]
    heard = _said("check vllm==0.24.0", home, site.url)
    assert heard.code == 5
    assert "The server is too slow" in heard.err


@pytest.mark.parametrize("given", ["soon", "0", "-1"])
def test_a_patience_that_is_none_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", given)
    heard = _said("check verl==0.9.1", home, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    assert f"UV_HTTP_TIMEOUT is `{given}`" in heard.err


def test_a_project_that_the_index_does_not_have_is_unknown(site: Site, home: Path) -> None:
    del site.rows["ray"]
    heard = _said("check ray==2.60.0", home, site.url)
    assert heard.code == 4
    check_golden("error-project-404.txt", steady(heard.text))


def test_an_index_that_breaks_half_way_ends_with_its_own_code_and_keeps_the_rest(site: Site, home: Path) -> None:
    site.faults[WHEEL] = ["404*"]
    site.faults[WHEEL.replace("0.24.0", "0.26.0")] = ["404*"]
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, site.url)
    assert heard.code == 5
    assert "could not be read" in heard.err
    assert (home / "out" / "index.html").exists()
    kept = {item.question.cell for item in Store(home / "kept" / "store")}
    assert kept >= {"verl0.9.1-vllm0.27.0", "verl0.9.1-vllm0.28.0"}
    site.faults.clear()
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, site.url)
    assert heard.code == 0
    assert "verl0.9.1-vllm0.27.0  (stored)" in heard.err


def test_a_check_that_could_not_be_finished_prints_what_it_has_and_is_no_pass(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ToolError("uv failed.", then="Upgrade it.")

    monkeypatch.setattr("matrix.resolve.resolver.Uv.solve", broken)
    heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == 6
    check_golden("error-half-a-check.txt", steady(heard.text))


def test_a_bisection_does_not_take_a_broken_index_for_a_hole(site: Site, home: Path) -> None:
    site.faults[WHEEL.replace("0.24.0", "0.26.0")] = ["404*"]
    heard = _said("bisect --axis vllm --with verl==0.9.1 --good 0.24.0 --bad 0.27.0", home, site.url)
    assert heard.code == 5


@pytest.mark.parametrize("fault", ["flipped*", "truncated*"])
def test_a_wheel_that_does_not_come_whole_is_no_verdict(site: Site, home: Path, fault: str) -> None:
    site.faults[WHEEL] = [fault]
    heard = _said(f"surface {ONE}", home, site.url)
    assert heard.code in (5, 7)
    assert heard.out == ""
    site.faults.clear()
    assert _said(f"surface {ONE}", home, site.url).code == 0


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in content)


def _empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("spoil", [_cut, _flip, _empty])
def test_a_cache_that_is_spoiled_is_read_anew(shared: Site, home: Path, spoil: Callable[[bytes], bytes]) -> None:
    before = _said(f"check {ONE} --json", home, shared.url)
    spoiled = [path for path in (home / "kept" / "cache" / "index-1").rglob("*") if path.is_file()]
    assert len(spoiled) > 5
    for path in spoiled:
        path.write_bytes(spoil(path.read_bytes()))
    after = _said(f"check {ONE} --json --again", home, shared.url)
    assert after.code == 0
    assert [cell["status"] for cell in json.loads(after.out)["cells"]] == [
        cell["status"] for cell in json.loads(before.out)["cells"]
    ]


def test_a_stored_detail_that_is_spoiled_is_told_and_asked_anew(
    shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LARGE_BYTES", 200)
    assert _said(f"check {ONE}", home, shared.url).code == 0
    details = list((home / "kept" / "store" / "details").rglob("*.json.gz"))
    assert details
    for path in details:
        path.write_bytes(_flip(path.read_bytes()))
    heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == 7
    assert "run again" in heard.err
    while heard.code == 7:
        heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == 0


def test_a_line_of_the_store_that_is_spoiled_is_passed_over_and_told(shared: Site, home: Path) -> None:
    _said(f"check {ONE}", home, shared.url)
    path = home / "kept" / "store" / "observations.jsonl"
    path.write_bytes(b'{"half": \n' + path.read_bytes())
    heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == 0
    assert "note       1 line of observations.jsonl passed over" in heard.out


def test_a_store_of_a_newer_release_is_left_alone(shared: Site, home: Path) -> None:
    path = home / "kept" / "store" / "observations.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 99}\n', encoding="utf-8")
    heard = _said(f"check {ONE}", home, shared.url)
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
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 8
    check_golden("error-no-room.txt", "".join(line for line in _errors(heard, home)))
    assert len(Store(home / "kept" / "store")) == 3
    monkeypatch.undo()
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
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
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 8
    assert "Free some space" in heard.err


@pytest.mark.parametrize("words", [f"check {ONE}", "run --cells-file HOME/cells.toml", "grid", f"surface {ONE}"])
def test_a_home_that_cannot_be_used_is_told_before_anything_is_asked(tmp_path: Path, words: str) -> None:
    (tmp_path / "cells.toml").write_text(CELLS, encoding="utf-8")
    (tmp_path / "kept").write_text("a file", encoding="utf-8")
    heard = _said(words, tmp_path, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    check_golden("error-home.txt", steady(heard.text, (tmp_path, "HOME")))


@pytest.mark.parametrize("words", ["run --cells-file HOME/cells.toml", "grid"])
def test_an_out_folder_that_cannot_be_is_told_before_anything_is_asked(home: Path, words: str) -> None:
    (home / "out").write_text("a file", encoding="utf-8")
    heard = _said(f"{words} --out HOME/out/deep", home, "http://127.0.0.1:1/simple")
    assert heard.code == 2
    check_golden("error-out.txt", steady(heard.text, (home, "HOME")))


def test_a_report_that_cannot_be_written_is_told_and_what_was_found_is_kept(shared: Site, home: Path) -> None:
    (home / "out" / "report.json").mkdir(parents=True)
    heard = _said("run --cells-file HOME/cells.toml --out HOME/out", home, shared.url)
    assert heard.code == 2
    assert "`verl-matrix report` writes the report again" in heard.err
    assert len(Store(home / "kept" / "store")) == 10


def test_a_locked_store_is_told(shared: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.1)
    folder = home / "kept" / "store"
    folder.mkdir(parents=True)
    with filelock.FileLock(folder / "observations.lock"):
        heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == 9
    check_golden("error-locked.txt", steady(heard.text, (home, "HOME")))


def test_offline_without_a_cache_says_so_and_with_one_answers(site: Site, home: Path) -> None:
    heard = _said(f"check {ONE} --offline", home, site.url)
    assert heard.code == 5
    check_golden("error-offline.txt", steady(heard.text))
    assert _said(f"check {ONE}", home, site.url).code == 0
    asked = len(site.asked)
    assert _said(f"check {ONE} --offline", home, site.url).code == 0
    assert len(site.asked) == asked


def test_axes_that_cannot_be_rewritten_stay_as_they_are(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "axes.toml"

    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("matrix.update.replace_file", refuse)
    heard = _said("update", home, site.url)
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
    heard = _said(words, home, shared.url)
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
    heard = _said(words, home, shared.url)
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
    heard = _said(f"check {ONE}", home, shared.url)
    assert heard.code == MatrixError.exit_code
    assert "two and two is five" in heard.err
    assert heard.err.endswith("Please report it, with the lines above and the command line.\n")
