"""uv as the resolver: a problem in, an answer out; it never builds anything and reads no configuration but ours."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from matrix.cell import Platform
from matrix.errors import IndexUnreachableError, NoSpaceError, ToolError, UsageError
from matrix.resolve.process import Children, Ended, surroundings
from matrix.resolve.sdists import SdistTable

TIMEOUT_S = 300.0
# Imported by every start of the bare interpreter. uv asks an interpreter about itself in isolated mode (-I) and runs
# build backends without it, so this stops a backend that lies in the sdist itself and needs nothing installed.
_NO_BUILDS = (
    "import sys, os; sys.flags.isolated or "
    '(os.write(2, b"verl-matrix: this interpreter refuses to build\\n"), os._exit(87))\n'
)
_NO_ANSWER = (
    "error sending request", "Failed to fetch", "Request failed after", "client error (Connect)", "dns error",
    "operation timed out", "network was disabled", "could not be queried", "HTTP status server error",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What uv is asked: PEP 508 requirements (the user's own), on a platform, as of a date, with deviations.

    `refresh` names packages whose index pages are to be read anew, however young the copy. `constraints` hold for a
    package that something asks for, and ask for none.
    """

    requirements: tuple[str, ...]
    platform: Platform
    as_of: datetime | None = None
    overrides: tuple[str, ...] = ()
    no_deps: bool = False
    refresh: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A solution: the lock (text of a PEP 751 `pylock.toml`), and who asked for whom on the way to it.

    `dependants` maps a package to every package that depends on it in any release that uv looked at, so to at least
    those of the solution; None when uv's log could not be read.
    """

    lock: str
    dependants: Mapping[str, frozenset[str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No solution exists; `text` is uv's derivation as printed, `hints` its hints."""

    text: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsBuild:
    """uv would have to build an sdist to go on; `package` as `name==version`, `because` why uv looked at it."""

    package: str
    text: str
    because: str = ""


Answer = Solved | Refused | NeedsBuild


class Solver(Protocol):
    """What the resolver needs of uv; `matrix.resolve.solver.Uv` is the real one."""

    @property
    def version(self) -> str:
        """Return the resolver's name and version; raises ToolError."""

    def solve(self, problem: Problem) -> Answer:
        """Return the answer; raises ToolError, IndexUnreachableError, NoSpaceError, UsageError: never a conflict."""

    def stop(self) -> None:
        """Kill what runs now."""


def find_uv(given: Path | None = None) -> Path:
    """Return the uv to use: the given one, that of the `uv` package, else that on PATH; raises ToolError."""
    if given is not None:
        return given
    try:
        import uv

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ToolError(
            "uv was not found.",
            why="It is neither installed beside this package nor on PATH.",
            then="Run `python -m pip install uv`.",
        )
    return Path(found)


class Uv:
    """The real solver. Thread-safe; every call is one uv process.

    Its own files (cache, bare interpreter, configuration) lie under `cache_dir`; index pages are looked at again when
    they are older than `page_max_age`.
    """

    def __init__(
        self,
        *,
        cache_dir: Path,
        index_url: str,
        sdists: SdistTable,
        uv: Path | None = None,
        python: Path | None = None,
        page_max_age: timedelta = timedelta(minutes=10),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._given = uv
        self._python = python or Path(sys.executable)
        self._cache = cache_dir.absolute()
        self._config = _config(index_url, page_max_age, sdists)
        self._timeout_s = timeout_s
        self._children = Children()
        self._guard = threading.Lock()
        self._version: str | None = None
        self._bare: Path | None = None

    @property
    def version(self) -> str:
        """Return e.g. `uv 0.13.9`; raises ToolError."""
        with self._guard:
            if self._version is None:
                ended = self._run(["--version"], "")
                if ended.code != 0 or not ended.stdout.startswith("uv "):
                    raise _failed("uv --version", ended)
                self._version = " ".join(ended.stdout.split()[:2])
            return self._version

    def solve(self, problem: Problem) -> Answer:
        """Return uv's answer; raises ToolError, IndexUnreachableError, NoSpaceError, UsageError."""
        return read_answer(self._compile(problem), problem)

    def stop(self) -> None:
        """Kill every uv that runs now."""
        self._children.stop()

    def _compile(self, problem: Problem) -> Ended:
        platform = problem.platform
        command = ["pip", "compile", "-", "--format", "pylock.toml", "--quiet", "--color", "never", "--no-header"]
        command += ["--config-file", "uv.toml", "--cache-dir", str(self._cache / "uv"), "--no-build-isolation"]
        command += ["--python", str(self._interpreter()), "--python-version", platform.python]
        command += ["--python-platform", platform.uv]
        if problem.as_of is not None:
            command += ["--exclude-newer", f"{problem.as_of.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"]
        for package in problem.refresh:
            command += ["--refresh-package", package]
        if problem.no_deps:
            command.append("--no-deps")
        if problem.overrides:
            command += ["--overrides", "overrides.txt"]
        if problem.constraints:
            command += ["--constraints", "constraints.txt"]
        lists = {"overrides.txt": problem.overrides, "constraints.txt": problem.constraints}
        files = {"uv.toml": self._config} | {name: "\n".join(lines) + "\n" for name, lines in lists.items()}
        return self._run(command, "\n".join(problem.requirements) + "\n", files)

    def _run(self, arguments: list[str], stdin: str, files: Mapping[str, str] | None = None) -> Ended:
        """Return how uv ended; raises ToolError when it cannot be started or the time limit passed."""
        uv = find_uv(self._given)
        # The log says who depends on whom, which the lock does not.
        env = surroundings() | {"UV_PYTHON_DOWNLOADS": "never", "RUST_LOG": "uv_resolver::resolver=debug"}
        try:
            with tempfile.TemporaryDirectory(prefix="verl-matrix-uv-") as name:
                folder = Path(name)
                for file, text in (files or {}).items():
                    (folder / file).write_text(text, encoding="utf-8")
                ended = self._children.run(
                    [str(uv), *arguments], folder=folder, env=env, timeout_s=self._timeout_s, stdin=stdin
                )
        except OSError as error:
            if error.errno == 28:
                raise NoSpaceError("No room is left for uv's files.", then="Free some disk space.") from error
            raise ToolError(f"uv could not be started: {uv}.", why=str(error)) from error
        if ended.code is None:
            raise ToolError(
                f"uv was stopped, at the latest after {self._timeout_s:.0f} s.",
                why=_tail(ended.stderr),
                then="Run again: what it fetched is kept.",
            )
        return ended

    def _interpreter(self) -> Path:
        """Return an interpreter in which nothing is installed and nothing can be built; made once a cache."""
        with self._guard:
            if self._bare is None:
                self._bare = self._make_interpreter()
            return self._bare

    def _make_interpreter(self) -> Path:
        home = self._cache / f"bare-{hashlib.sha256(str(self._python).encode()).hexdigest()[:12]}"
        python = home / "bin" / "python"
        if _is_whole(home):
            return python
        self._cache.mkdir(parents=True, exist_ok=True)
        # Made aside and moved into place, because two runs may start at once on an empty cache.
        aside = Path(tempfile.mkdtemp(prefix=".bare-", dir=self._cache))
        command = ["venv", "--quiet", "--no-project", "--no-config", "--allow-existing", "--python", str(self._python)]
        ended = self._run([*command, "--cache-dir", str(self._cache / "uv"), str(aside)], "")
        if ended.code != 0:
            shutil.rmtree(aside, ignore_errors=True)
            raise _failed("uv venv", ended)
        for packages in aside.glob("lib/python*/site-packages"):
            (packages / "verl_matrix_no_builds.pth").write_text(_NO_BUILDS, encoding="utf-8")
        (aside / "ready").touch()
        try:
            if home.exists() and not _is_whole(home):
                shutil.rmtree(home)
            aside.rename(home)
        except OSError:
            # Another run was faster.
            shutil.rmtree(aside, ignore_errors=True)
        return python


def _is_whole(home: Path) -> bool:
    """Return whether the bare interpreter there is complete."""
    return (home / "ready").exists() and (home / "bin" / "python").exists()


def _config(index_url: str, page_max_age: timedelta, sdists: SdistTable) -> str:
    """Return our uv.toml: the one index, how long its pages are good for, and what sdist-only packages depend on."""
    seconds = max(0, int(page_max_age.total_seconds()))
    return (
        "[[index]]\n"
        'name = "index"\n'
        f"url = {json.dumps(index_url)}\n"
        "default = true\n"
        f'cache-control = {{ api = "max-age={seconds}", files = "max-age=365000000, immutable" }}\n\n'
        f"{sdists.uv_config()}"
    )


_LOG = re.compile(r"^\s*(?:\S+\s+)?(?:DEBUG|TRACE|INFO) ")
_DEPENDS = re.compile(r"DEBUG Adding transitive dependency for ([A-Za-z0-9._-]+)\S*: ([A-Za-z0-9._-]+)")
_ASKED = re.compile(r"DEBUG Adding direct dependency: ([A-Za-z0-9._-]+)")


def read_answer(ended: Ended, problem: Problem) -> Answer:
    """Return what uv's exit code and output say; raises the error they stand for when they are no answer."""
    if ended.code == 0:
        return Solved(lock=ended.stdout, dependants=_dependants(ended.stderr, problem))
    message = "\n".join(line for line in ended.stderr.splitlines() if not _LOG.match(line))
    text, *hints = re.split(r"^hint: ", message, flags=re.MULTILINE)
    if any(sign in message for sign in _NO_ANSWER):
        raise IndexUnreachableError(
            "uv could not read the package index.",
            why=_tail(message),
            then="Check the network, proxy and index address, then run again: what was fetched is kept.",
        )
    if _is_full(message):
        raise _failed("uv pip compile", ended)
    if "No solution found when resolving dependencies" in text:
        return Refused(text=text.strip(), hints=tuple(" ".join(hint.split()) for hint in hints))
    if match := re.search(r"Failed to (?:download and )?build `([^`]+)`", text):
        because = next((hint for hint in hints if "was included because" in hint), "")
        return NeedsBuild(
            package=match[1].replace(" @ ", "==").replace("@", "=="),
            text=message.strip(),
            because=" ".join(because.replace("`", "").split()),
        )
    if "invalid value" in text and "--python" in text:
        raise UsageError(f"uv does not know this platform: {problem.platform.uv}, python {problem.platform.python}.",
                         why=_tail(text))  # fmt: skip
    raise _failed("uv pip compile", ended)


def _dependants(log: str, problem: Problem) -> Mapping[str, frozenset[str]] | None:
    """Return who depends on whom by uv's log, or None when the log lacks what it always holds."""
    if len(set(_ASKED.findall(log))) < len(problem.requirements):
        return None
    found: dict[str, set[str]] = {}
    for who, whom in _DEPENDS.findall(log):
        found.setdefault(whom, set()).add(who)
    return {whom: frozenset(who) for whom, who in found.items()}


def _is_full(message: str) -> bool:
    """Return whether uv says that the disk, or a quota, is full."""
    return "No space left on device" in message or "Disk quota exceeded" in message


def _failed(what: str, ended: Ended) -> ToolError | NoSpaceError:
    """Return what it is that uv failed: a full disk is no fault of uv."""
    if _is_full(ended.stderr):
        return NoSpaceError("uv ran out of disk space.", why=_tail(ended.stderr), then="Free some disk space.")
    return ToolError(
        f"`{what}` failed with exit code {ended.code}.",
        why=_tail("\n".join(line for line in ended.stderr.splitlines() if not _LOG.match(line))),
        then="Run again; if it stays, delete uv's folder in the cache, and `python -m pip install --upgrade uv`.",
    )


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])[-2000:]
