"""Reading what people have: which kind a file is, and its stack; or that of an environment, or of words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from matrix.axes import axis_named
from matrix.cell import Platform
from matrix.errors import UsageError
from matrix.pins.docker import read_dockerfile
from matrix.pins.locks import read_lock
from matrix.pins.project import read_project
from matrix.pins.requirements import Read, read_freeze, read_requirements, text_of
from matrix.pins.stack import Kind, Stack, Statement, statement_of

_PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def kind_of(path: Path, text: str) -> Kind:
    """Return what kind of input a file is, by its name, else by what it holds."""
    name = path.name.lower()
    if name.startswith(("dockerfile", "containerfile")) or name.endswith((".dockerfile", ".containerfile")):
        return Kind.DOCKERFILE
    if name.endswith(".lock"):
        return Kind.UV_LOCK
    if name.endswith(".toml"):
        locks = re.search(r"^lock-version\s*=", text, re.MULTILINE)
        return Kind.PYLOCK if name.startswith("pylock") or locks else Kind.PYPROJECT
    if "freeze" in name or name == "-" or re.match(r"\s*Package\s+Version", text):
        return Kind.FREEZE
    if re.search(r"^\s*FROM\s+\S+", text, re.MULTILINE) and re.search(r"^\s*RUN\s", text, re.MULTILINE):
        return Kind.DOCKERFILE
    return Kind.REQUIREMENTS


def read_stack(
    path: Path,
    text: str,
    platform: Platform,
    *,
    kind: Kind | None = None,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> Stack:
    """Return the stack that a file states, on the platform; `kind` is told by the file itself unless it is given.

    Raises:
        DataError: it cannot be read; the message names the file and the line.
        UsageError: a project has no extra or group of that name.
    """
    found = kind or kind_of(path, text)
    environment = platform.environment()
    read = Read()
    overrides: tuple[Statement, ...] = ()
    python = ""
    match found:
        case Kind.DOCKERFILE:
            read_dockerfile(path, text, environment, read)
        case Kind.PYPROJECT:
            overrides, python = read_project(path, text, environment, read, extras=extras, groups=groups)
        case Kind.UV_LOCK | Kind.PYLOCK:
            python = read_lock(path, text, environment, read)
        case Kind.FREEZE | Kind.ENVIRONMENT:
            read_freeze(path, text, environment, read)
        case _:
            read_requirements(path, text, environment, read)
    return Stack(
        source=str(path),
        kind=found,
        statements=tuple(read.statements),
        overrides=overrides,
        notes=tuple(read.notes),
        python=_python(python),
    )


def read_file(
    path: Path, platform: Platform, *, kind: Kind | None = None, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Stack:
    """Return the stack that the file at `path` states; raises as `read_stack`, and DataError where it is not there."""
    return read_stack(path, text_of(path), platform, kind=kind, extras=extras, groups=groups)


def read_words(words: Sequence[str]) -> Stack:
    """Return the stack of specs that were typed (`verl==0.9.1`); an axis may have its short name.

    Raises UsageError for a word that is no requirement.
    """
    statements = []
    python = ""
    for word in words:
        try:
            requirement = Requirement(word)
        except InvalidRequirement as error:
            why = str(error).partition("\n")[0]
            raise UsageError(
                f"`{word}` is neither a file that is there nor a requirement.",
                why=why,
                then="Write it like verl==0.9.1.",
            ) from None
        if requirement.name.lower() in ("python", "py"):
            python = str(requirement.specifier)
            continue
        with contextlib.suppress(UsageError):
            # Any package may be named; an axis by its short name too.
            requirement.name = axis_named(requirement.name).value
        statements.append(statement_of(requirement, "the command line", word))
    return Stack(source="the command line", kind=Kind.WORDS, statements=tuple(statements), python=_python(python))


def read_environment(python: str) -> Stack:
    """Return the stack that is installed for an interpreter; raises as `doctor.environment.ask` does."""
    from matrix.doctor.environment import ask

    found = ask(python)
    seen: dict[str, Statement] = {}
    for item in found.distributions:
        if item.version is not None and item.name not in seen:
            seen[item.name] = Statement(
                package=item.name,
                where=item.where.name,
                text=f"{item.name}=={item.version}",
                specifier=SpecifierSet(f"=={item.version}"),
                version=item.version,
                binds=False,
                asks=False,
            )
    version = found.python
    return Stack(
        source=str(found.executable),
        kind=Kind.ENVIRONMENT,
        statements=tuple(seen.values()),
        python=f"{version.major}.{version.minor}",
    )


def _python(specifier: str) -> str:
    """Return the Python that a `requires-python` lets in: 3.12 where it does, else the oldest; "" for none."""
    if not specifier:
        return ""
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:
        return ""
    found = [text for text in _PYTHONS if any(allowed.contains(Version(f"{text}.{minor}")) for minor in (0, 99))]
    return Platform().python if Platform().python in found else (found[0] if found else "")
