"""The CPython of a cell among what the machine has: on PATH, uv's own, pyenv's, those of container images."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matrix.errors import ToolError
from matrix.resolve.process import Children

_ASK = (
    "import platform, struct, sys, sysconfig; import ssl, zlib, ctypes, sqlite3, lzma; "
    "print('verl-matrix:%d.%d %s %s' % (sys.version_info[0], sys.version_info[1], sys.implementation.name, "
    "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))"
)
TIMEOUT_S = 60.0
DOWNLOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finder:
    """Looks for interpreters; `managed` is where uv may put one that it downloads.

    `env` are the variables programs are started with; `home` is the user's home folder (for pyenv), `images` the
    folder where the manylinux images have theirs, `own` where the interpreter that runs this tool is installed.
    """

    uv: Path
    env: Mapping[str, str]
    managed: Path
    download: bool
    children: Children = field(default_factory=Children)
    home: Path = field(default_factory=Path.home)
    images: Path = Path("/opt/python")
    own: Path = field(default_factory=lambda: Path(sys.base_prefix))

    def find(self, version: str) -> Path:
        """Return a CPython `version` (`X.Y`) with all that the stack needs of the standard library.

        It is downloaded by uv where none is there and that is allowed. Raises ToolError: none can be had.
        """
        refused: list[str] = []
        for candidate in self._candidates(version):
            why = self._unfit(candidate, version)
            if not why:
                return candidate
            refused.append(f"{candidate}: {why}")
        return self._downloaded(version, refused)

    def _candidates(self, version: str) -> Iterator[Path]:
        """Yield interpreters that may be it, those that cost least to look for first."""
        seen: set[Path] = set()
        for path in self._places(version):
            if path.is_file() and (real := path.resolve()) not in seen:
                seen.add(real)
                yield path

    def _places(self, version: str) -> Iterator[Path]:
        yield from sorted(self.managed.glob(f"cpython-{version}*/bin/python{version}"), reverse=True)
        root = Path(self.env.get("PYENV_ROOT") or self.home / ".pyenv")
        yield from sorted(root.glob(f"versions/{version}.*/bin/python{version}"), key=_patch, reverse=True)
        yield self.own / "bin" / f"python{version}"
        if self.own.parent.name == "versions":
            yield from sorted(self.own.parent.glob(f"{version}.*/bin/python{version}"), key=_patch, reverse=True)
        yield from sorted(self.images.glob(f"cp{version.replace('.', '')}-cp*/bin/python{version}"))
        found = self._run(["python", "find", version, "--system", "--no-project", "--no-config", "--quiet",
                           "--no-python-downloads"], TIMEOUT_S)  # fmt: skip
        if found:
            yield Path(found)

    def _unfit(self, python: Path, version: str) -> str:
        """Return why this interpreter will not do, "" where it will."""
        try:
            with tempfile.TemporaryDirectory(prefix="verl-matrix-") as folder:
                command = [str(python), "-I", "-c", _ASK]
                ended = self.children.run(command, folder=Path(folder), env=self.env, timeout_s=TIMEOUT_S)
        except OSError as error:
            return str(error)
        if ended.code != 0:
            return (ended.stderr.strip().splitlines() or ["it does not start"])[-1]
        told = next((line for line in ended.stdout.splitlines() if line.startswith("verl-matrix:")), "")
        has, implementation, free_threaded = told.removeprefix("verl-matrix:").split()
        if has != version:
            return f"it is Python {has}"
        if implementation != "cpython":
            return f"it is {implementation}"
        return "it is free-threaded" if free_threaded == "True" else ""

    def _downloaded(self, version: str, refused: list[str]) -> Path:
        why = "; ".join(refused[:3])
        if not self.download:
            raise _none(version, why, "uv was not allowed to download one (offline, or UV_PYTHON_DOWNLOADS=never).")
        arguments = ["python", "install", version, "--no-config", "--quiet"]
        self._run([*arguments, "--install-dir", str(self.managed)], DOWNLOAD_TIMEOUT_S)
        for candidate in self.managed.glob(f"cpython-{version}*/bin/python{version}"):
            if not self._unfit(candidate, version):
                return candidate
        raise _none(version, why, "uv could not download one: its source (GitHub releases) was not reached.")

    def _run(self, arguments: list[str], timeout_s: float) -> str:
        """Return uv's standard output, "" when it failed."""
        try:
            with tempfile.TemporaryDirectory(prefix="verl-matrix-uv-") as folder:
                command = [str(self.uv), *arguments]
                ended = self.children.run(command, folder=Path(folder), env=self.env, timeout_s=timeout_s)
        except OSError as error:
            raise ToolError(f"uv could not be started: {self.uv}.", why=str(error)) from error
        return ended.stdout.strip() if ended.code == 0 else ""


def _patch(python: Path) -> tuple[int, ...]:
    """Return the numbers in the folder's name, so that 3.12.10 comes after 3.12.9."""
    return tuple(int(number) for number in re.findall(r"\d+", python.parents[1].name))


def _none(version: str, refused: str, and_then: str) -> ToolError:
    looked = "Looked on PATH, beside this tool's own interpreter, and in uv's, pyenv's and /opt/python's folders."
    return ToolError(
        f"There is no CPython {version} on this machine that can be used.",
        why=" ".join(filter(None, (looked, refused, and_then))),
        then=f"Install it (`uv python install {version}`, pyenv or the system's packages), or choose cells of another.",
    )


def downloads_allowed(*, offline: bool) -> bool:
    """Return whether uv may download an interpreter."""
    return not offline and os.environ.get("UV_PYTHON_DOWNLOADS", "automatic").lower() not in ("never", "0", "false")
