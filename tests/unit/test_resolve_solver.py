"""uv as the resolver: how its output is read (recorded), and the real uv on an index in a folder."""

from __future__ import annotations

import shutil
import stat
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from matrix.cell import Platform
from matrix.errors import IndexUnreachableError, MatrixError, NoSpaceError, ToolError, UsageError
from matrix.resolve.lock import parse_lock
from matrix.resolve.process import Ended
from matrix.resolve.sdists import SdistTable, load_sdists
from matrix.resolve.solver import Answer, NeedsBuild, Problem, Refused, Solved, Uv, find_uv, read_answer
from tests.unit.local_index import LocalIndex

GOLDEN = Path(__file__).parent / "golden" / "resolve"
PROBLEM = Problem(requirements=("tensordict==0.6.2", "omegaconf==2.3.0"), platform=Platform())
NO_SDISTS = SdistTable(sdists=(), digest="sha256:0")


def recorded(name: str, code: int, stdout: str = "") -> Answer:
    stderr = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    return read_answer(Ended(code=code, stdout=stdout, stderr=stderr), PROBLEM)


@pytest.mark.parametrize(
    "name", ["direct", "transitive", "core", "absent", "unknown", "abi", "pyreq", "numbered", "open"]
)
def test_a_refusal_is_read_without_log_and_hints(name: str) -> None:
    answer = recorded(name, 1)
    assert isinstance(answer, Refused)
    assert answer.text.startswith("error: No solution found")
    assert "DEBUG" not in answer.text
    assert "hint:" not in answer.text


def test_hints_are_kept() -> None:
    answer = recorded("abi", 1)
    assert isinstance(answer, Refused)
    assert [hint.split(",")[0] for hint in answer.hints] == ["You require CPython 3.14 (`cp314`)"]


def test_a_package_that_would_have_to_be_built_is_named_with_the_reason() -> None:
    answer = recorded("build", 1)
    assert isinstance(answer, NeedsBuild)
    assert answer.package == "quantile-python==1.1"
    assert answer.because == (
        "quantile-python (v1.1) was included because vllm (v0.2.5) depends on aioprometheus (v23.12.0) which depends "
        "on quantile-python>=1.1"
    )


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("offline", 1, IndexUnreachableError),
        ("unreachable", 2, IndexUnreachableError),
        ("platform", 2, UsageError),
        ("syntax", 2, ToolError),
    ],
)
def test_what_is_no_answer_is_an_error_and_never_a_conflict(name: str, code: int, error: type[MatrixError]) -> None:
    with pytest.raises(error) as caught:
        recorded(name, code)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("error: failed to write: No space left on device (os error 28)", NoSpaceError),
        ("thread 'main' panicked at src/lib.rs", ToolError),
        ("", ToolError),
        ("error: Request failed\n  cause: HTTP status server error (503)", IndexUnreachableError),
        (
            (
                "error: No solution found when resolving dependencies\n  cause: Because a was not found\n\n"
                "hint: An index URL (https://x) could not be queried due to a lack of valid credentials (401)."
            ),
            IndexUnreachableError,
        ),
    ],
)
def test_failures_by_their_words(stderr: str, error: type[MatrixError]) -> None:
    with pytest.raises(error):
        read_answer(Ended(code=2, stdout="", stderr=stderr), PROBLEM)


def test_a_solution_comes_with_who_depends_on_whom() -> None:
    answer = recorded("solved", 0, (GOLDEN / "solved.pylock.toml").read_text(encoding="utf-8"))
    assert isinstance(answer, Solved)
    assert answer.dependants is not None
    assert answer.dependants["torch"] == {"tensordict"}
    assert answer.dependants["antlr4-python3-runtime"] == {"omegaconf"}
    assert "tensordict" not in answer.dependants
    locked = set(parse_lock(answer.lock).versions)
    assert locked - set(answer.dependants) == {"tensordict", "omegaconf"}


def test_without_the_log_nobody_is_said_to_stand_alone() -> None:
    answer = read_answer(Ended(code=0, stdout="x", stderr="DEBUG Adding direct dependency: tensordict>=0.6.2"), PROBLEM)
    assert answer == Solved(lock="x", dependants=None)


# --- the real uv, no network ---


@pytest.fixture
def index(tmp_path: Path) -> LocalIndex:
    index = LocalIndex(tmp_path / "simple")
    index.wheel("alpha", "1.0", ["beta>=1"])
    index.wheel("alpha", "2.0", ["beta<1"])
    index.wheel("beta", "1.0")
    index.wheel("beta", "1.1")
    return index


def solver(index: LocalIndex, tmp_path: Path, **options: object) -> Uv:
    values: dict[str, object] = {
        "cache_dir": tmp_path / "cache",
        "index_url": index.url,
        "sdists": NO_SDISTS,
        "page_max_age": timedelta(0),
    }
    return Uv(**(values | options))  # type: ignore[arg-type]


def ask(uv: Uv, *requirements: str, **options: object) -> Answer:
    return uv.solve(Problem(requirements=requirements, platform=Platform(), **options))  # type: ignore[arg-type]


def test_the_real_uv_solves_and_refuses(index: LocalIndex, tmp_path: Path) -> None:
    uv = solver(index, tmp_path)
    answer = ask(uv, "alpha")
    assert isinstance(answer, Solved)
    assert {name: str(version) for name, version in parse_lock(answer.lock).versions.items()} == {
        "alpha": "1.0",
        "beta": "1.1",
    }
    assert answer.dependants == {"beta": frozenset({"alpha"})}
    assert isinstance(ask(uv, "alpha==2.0"), Refused)
    assert isinstance(ask(uv, "gamma"), Refused)
    overridden = ask(uv, "alpha==2.0", overrides=("beta==1.0",))
    assert isinstance(overridden, Solved)
    assert 'version = "1.0"' in overridden.lock
    alone = ask(uv, "alpha==2.0", no_deps=True)
    assert isinstance(alone, Solved)
    assert list(parse_lock(alone.lock).versions) == ["alpha"]


def test_another_python_than_any_installed_one_can_be_asked_for(index: LocalIndex, tmp_path: Path) -> None:
    index.wheel("delta", "1.0", ["beta==1.1; python_version >= '3.15'"], tag="cp315-cp315-manylinux_2_35_x86_64")
    uv = solver(index, tmp_path)
    answer = uv.solve(Problem(requirements=("delta",), platform=Platform(python="3.15")))
    assert isinstance(answer, Solved)
    assert set(parse_lock(answer.lock).versions) == {"beta", "delta"}
    assert isinstance(uv.solve(Problem(requirements=("delta",), platform=Platform())), Refused)


def test_page_copies_are_passed_over_when_asked(index: LocalIndex, tmp_path: Path) -> None:
    assert isinstance(ask(solver(index, tmp_path), "beta==9", refresh=("beta",)), Refused)


LEGACY = {
    "setup.py": "open('built', 'w')\nfrom setuptools import setup\nsetup()\n",
    "PKG-INFO": "Metadata-Version: 1.0\n",
}
# A backend that lies in the sdist itself needs nothing installed, so only the interpreter can refuse it.
IN_TREE = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
    "PKG-INFO": "Metadata-Version: 1.0\nName: omega\nVersion: 1.0\n",
    "own.py": (
        "from pathlib import Path\n"
        "Path({marker!r}).write_text('built')\n"
        "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    home = Path(folder) / 'omega-1.0.dist-info'; home.mkdir()\n"
        "    (home / 'METADATA').write_text('Metadata-Version: 2.1\\nName: omega\\nVersion: 1.0\\n')\n"
        "    return home.name\n"
        "def build_wheel(*given): raise SystemExit\n"
    ),
}


@pytest.mark.parametrize("members", [LEGACY, IN_TREE], ids=["legacy", "in-tree"])
def test_nothing_is_built(index: LocalIndex, tmp_path: Path, members: dict[str, str]) -> None:
    marker = tmp_path / "marker"
    index.sdist("omega", "1.0", {name: text.replace("{marker!r}", repr(str(marker))) for name, text in members.items()})
    index.wheel("alpha", "3.0", ["omega"])
    answer = ask(solver(index, tmp_path), "alpha==3.0")
    assert isinstance(answer, NeedsBuild)
    assert answer.package == "omega==1.0"
    assert not marker.exists()


def test_a_listed_sdist_is_resolved_without_a_build(index: LocalIndex, tmp_path: Path) -> None:
    index.sdist("flash-attn", "2.6.3", LEGACY)
    index.wheel("torch", "2.4.0")
    index.wheel("einops", "0.8")
    answer = ask(solver(index, tmp_path, sdists=load_sdists()), "flash-attn==2.6.3")
    assert isinstance(answer, Solved)
    lock = parse_lock(answer.lock)
    assert set(lock.versions) == {"flash-attn", "torch", "einops"}
    assert lock.to_build == ("flash-attn==2.6.3",)


def test_the_interpreter_is_made_once_and_again_when_damaged(index: LocalIndex, tmp_path: Path) -> None:
    ask(solver(index, tmp_path), "beta")
    (home,) = (tmp_path / "cache").glob("bare-*")
    stamp = (home / "ready").stat().st_mtime_ns
    ask(solver(index, tmp_path), "beta")
    assert (home / "ready").stat().st_mtime_ns == stamp
    shutil.rmtree(home / "bin")
    assert isinstance(ask(solver(index, tmp_path), "beta"), Solved)
    (home / "ready").unlink()
    assert isinstance(ask(solver(index, tmp_path), "beta"), Solved)
    assert (home / "ready").exists()


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "uv-script"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import time; time.sleep(60)", "stopped"),
        ("import sys; sys.exit('broken')", "exit code 1"),
        ("print('something else')", "exit code 0"),
    ],
)
def test_a_uv_that_does_not_work_is_a_tool_error(index: LocalIndex, tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        _ = solver(index, tmp_path, uv=script(tmp_path, body), timeout_s=0.4).version


def test_a_uv_that_is_not_there_is_a_tool_error(index: LocalIndex, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="could not be started"):
        _ = solver(index, tmp_path, uv=tmp_path / "none").version


def test_an_interpreter_that_cannot_be_made_is_a_tool_error(index: LocalIndex, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="uv venv"):
        ask(solver(index, tmp_path, python=tmp_path / "none"), "beta")
    assert list((tmp_path / "cache").glob(".bare-*")) == []


def test_version_is_asked_once(index: LocalIndex, tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'asked')!r}, 'a').write('x'); print('uv 1.2.3 (abc)')"
    uv = solver(index, tmp_path, uv=script(tmp_path, body))
    assert (uv.version, uv.version) == ("uv 1.2.3", "uv 1.2.3")
    assert (tmp_path / "asked").read_text() == "x"


def test_find_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_uv(tmp_path) == tmp_path
    assert find_uv().name == "uv"
    monkeypatch.setitem(sys.modules, "uv", None)
    path = script(tmp_path, "")
    monkeypatch.setattr(shutil, "which", lambda name: str(path))
    assert find_uv() == path
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolError, match="not found"):
        find_uv()
