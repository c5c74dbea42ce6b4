"""What the tests of bundles share: tiny wheels behind a fetcher that is a dict, and a bundle made of them."""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from matrix.bundle import Bundle, Maker, Order
from matrix.bundle.host import program
from matrix.bundle.wheelhouse import Wheelhouse
from matrix.cell import Axis, Cell, Pin, Platform
from matrix.errors import IndexUnreachableError
from matrix.provision.builds import BuildTable
from matrix.resolve.solver import Answer, Problem, Refused, Solved, find_uv

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PLATFORM = Platform(python=PYTHON)


def wheel(
    name: str, version: str, files: Mapping[str, str] | None = None, modes: Mapping[str, int] | None = None
) -> bytes:
    """Return a wheel with these files, `NAME.py` where none is given."""
    info = f"{name}-{version}.dist-info"
    inside = {f"{name}.py": f"__version__ = {version!r}\n"} if files is None else dict(files)
    inside[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    inside[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = []
    for path, text in inside.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}\n")
    inside[f"{info}/RECORD"] = "".join(lines) + f"{info}/RECORD,,\n"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in inside.items():
            entry = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | (modes or {}).get(path, 0o644)) << 16
            archive.writestr(entry, text)
    return made.getvalue()


UV = "0.9.0"
UV_WHEEL = wheel("uv", UV, {f"uv-{UV}.data/scripts/uv": f'#!/bin/sh\nexec {find_uv()} "$@"\n'})


@dataclass(slots=True)
class Shelf:
    """An index of files by address, and the fetcher over it; `asked` are the addresses that were fetched."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    offline: bool = False

    def add(self, name: str, version: str, body: bytes | None = None, **more: Mapping[str, object]) -> str:
        """Add a wheel and return its entry in a lock."""
        body = wheel(name, version, **more) if body is None else body  # type: ignore[arg-type]
        filename = f"{name}-{version}-py3-none-any.whl"
        self.files[f"http://index/{filename}"] = body
        digest = hashlib.sha256(body).hexdigest()
        file = f'{{ url = "http://index/{filename}", size = {len(body)}, hashes = {{ sha256 = "{digest}" }} }}'
        return f'name = "{name.replace("_", "-")}"\nversion = "{version}"\nwheels = [{file}]\n'

    def whole(self, url: str, into: IO[bytes], limit: int) -> int:
        self.asked.append(url)
        if self.offline or url not in self.files:
            raise IndexUnreachableError(f"{url} could not be read.")
        into.seek(0)
        into.truncate()
        return into.write(self.files[url])


def lock(*entries: str) -> str:
    head = f'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">={PYTHON}"\n'
    return "\n[[packages]]\n".join([head, *sorted(entries)])


@dataclass(slots=True)
class Answers:
    """A solver that knows the entry of each package, and says no where a constraint speaks against it."""

    entries: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    version: str = "uv 0"

    def solve(self, problem: Problem) -> Answer:
        self.problems.append(problem)
        names = {Requirement(text).name for text in problem.requirements}
        if "pytest" in names:
            names |= {"pluggy"}
        chosen = [self.entries[name] for name in names if name in self.entries]
        for text in problem.constraints:
            held = Requirement(text)
            if held.name in names and held.name in self.entries:
                version = self.entries[held.name].split('version = "')[1].split('"')[0]
                if version not in held.specifier:
                    return Refused(text="no")
        return Solved(lock=lock(*chosen), dependants=None)

    def stop(self) -> None:
        """Nothing runs."""


def cell(version: str = "1.0", axis: Axis = Axis.RAY, platform: Platform = PLATFORM, variant: str = "") -> Cell:
    return Cell(pins=(Pin(axis=axis, version=Version(version), variant=variant),), platform=platform)


@dataclass(slots=True)
class Stack:
    """A maker over an index of its own, with what it says."""

    maker: Maker
    shelf: Shelf
    answers: Answers
    out: Path
    said: list[str] = field(default_factory=list)

    def make(self, *cells: tuple[Cell, str], **more: object) -> Bundle:
        return self.maker.make(Order(cells=cells, **{"part_size": 1 << 20} | more), self.out)  # type: ignore[arg-type]


def stack(tmp: Path, monkeypatch: pytest.MonkeyPatch, **more: object) -> Stack:
    """Return a maker whose tool is a wheel of one module, so that a bundle is made and unpacked in a moment."""
    shelf = Shelf()
    entries = {"uv": shelf.add("uv", UV, UV_WHEEL), "helper": shelf.add("helper", "1.0")}
    entries |= {"pytest": shelf.add("pytest", "9.0"), "pluggy": shelf.add("pluggy", "1.6")}
    answers = Answers(entries)
    tool = wheel("verl_matrix", "0.1.0", {"matrix.py": "print('the tool')\n"})
    monkeypatch.setattr("matrix.bundle.maker.build_tool_wheel", lambda: tool)
    monkeypatch.setattr("matrix.bundle.maker.requirements", lambda: ("uv>=0.9", "helper"))
    said: list[str] = []
    options: dict[str, object] = {
        "find_python": lambda _: Path(sys.executable),
        "builds": BuildTable(builds=(), backends={}),
    }
    house = Wheelhouse(
        root=tmp / "wheels",
        uv=find_uv(),
        uv_cache=tmp / "uv",
        index_url="http://index",
        fetcher=shelf,  # type: ignore[arg-type]
        say=said.append,
        **(options | more),  # type: ignore[arg-type]
    )
    return Stack(Maker(wheelhouse=house, solver=answers, say=said.append), shelf, answers, tmp / "bundle", said)


def unbundle(into: Path, *sources: Path, **more: object) -> None:
    """Run the program's own function with its usual options."""
    options: dict[str, object] = {"cell": [], "check": False, "unpack_only": False, "jobs": 2}
    asked = argparse.Namespace(parts=list(sources), into=into, **options | more)
    program.unbundle(asked, sources[0] if sources and sources[0].is_dir() else into.parent)


def swapped(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Return what a file held, after it was changed."""
    before = path.read_bytes()
    path.write_bytes(change(before))
    return before


NAME = "ray1.0" if PYTHON == "3.12" else f"ray1.0-py{PYTHON}"
OTHER = NAME.replace("1.0", "1.1")
SERVER = "ray/core/gcs_server"


def two(made: Stack, size: int = 4 << 20, **more: object) -> Bundle:
    """Make a bundle of two cells that share a package; one with a file that is run."""
    shared = made.shelf.add("shared", "1.0")
    files = {"ray/__init__.py": "x = 1\n", SERVER: "#!/bin/sh\necho served\n"}
    first = made.shelf.add("ray", "1.0", files=files, modes={SERVER: 0o755})
    second = made.shelf.add("ray", "1.1")
    cells = ((cell("1.0"), lock(first, shared)), (cell("1.1"), lock(second, shared)))
    return made.make(*cells, part_size=size, **more)


def files_in(folder: Path) -> set[str]:
    """Return the paths below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
