"""A Dockerfile's install lines, in order, as far as they can be told without building it.

Only the last stage counts, with those that it is built from. What a base image holds, what a script does that is copied
in, and what a condition decides are not known, and the notes say so where they meet one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from matrix.pins.requirements import Read, read_requirements, text_of
from matrix.pins.stack import Statement, name_of_file, parsed, statement_of, unreadable, version_of_file
from matrix.statements.instructions import Stage, instructions, scripts, stages
from matrix.statements.invocation import Invocation, Kind, invocation_of
from matrix.statements.shell import Command, Word, commands

_IMAGE = re.compile(r"(?:^|/)vllm-openai:v(?P<version>\d[\w.]*)$")
_SHELL_CONDITION = frozenset(("if", "case", "for", "while", "until"))
_CONDITION_ENDS = frozenset(("fi", "esac", "done"))


def read_dockerfile(path: Path, text: str, environment: Mapping[str, str], read: Read) -> None:
    """Add what a Dockerfile installs to `read`; a later install of a package takes the place of an earlier one.

    Raises:
        DataError: an install line names what is no requirement, or a heredoc does not end; the line is named.
    """
    items = tuple(instructions(text))
    for item in items:
        for body in item.heredocs:
            if not body.closed:
                why = f"its heredoc `{body.end}` does not end"
                raise unreadable(path, item.line, f"{item.name} {item.text}", why)
    found = stages(items)
    if not found:
        raise unreadable(path, 1, text.strip().partition("\n")[0], "a Dockerfile begins with FROM")
    chain = _chain(found[-1])
    base = chain[0].base
    where = f"{path.name}:{chain[0].line}"
    if base.unset:
        read.note(where, f"the base image `{base}` depends on {_names(base)}, which has no default")
    elif base.text != "scratch":
        read.note(where, f"what the base image {base} holds is not known")
        _of_image(base.text, where, read)
    for stage in chain:
        for run in stage.runs:
            for line, script in scripts(run.instruction):
                _run(path, commands(script, run.known, line), environment, read)


def _chain(stage: Stage) -> list[Stage]:
    """Return the stages that one is built on and itself, in the order in which they are built."""
    return [*(_chain(stage.parent) if stage.parent is not None else ()), stage]


def _names(word: Word) -> str:
    """Return what a word depends on that is not known, sorted."""
    return ", ".join(sorted(set(word.unset)))


def _of_image(image: str, where: str, read: Read) -> None:
    """Add the vLLM whose release image it is, by its tag: the one base of which a version is told."""
    if match := _IMAGE.search(image):
        try:
            version = Version(match["version"])
        except InvalidVersion:
            return
        statement = Statement(
            package="vllm", where=where, text=image, specifier=SpecifierSet(f"=={version}"), version=version,
            binds=False, asks=False,
        )  # fmt: skip
        read.statements.append(statement)


def _run(path: Path, script: Iterable[Command], environment: Mapping[str, str], read: Read) -> None:
    """Read one shell script."""
    conditions: list[Command] = []
    for command in script:
        where = f"{path.name}:{command[0].line}"
        text = " ".join(str(word) for word in command)
        if any(word.unclosed for word in command):
            if re.search(r"\bpip[\d.]*\s+install\b", text):
                why = "No closing quotation"
                read.note(where, f"not understood ({why}), so what it installs is not in the answer: `{text[:80]}`")
            continue
        if command[0].text in _SHELL_CONDITION:
            conditions.append(command)
        elif command[0].text in _CONDITION_ENDS and conditions:
            conditions.pop()
        invocation = invocation_of(command)
        if invocation is None:
            continue
        for held in conditions:
            told = f"a condition (`{held[0]} …`) decides what is installed; it was taken to hold"
            read.note(f"{path.name}:{held[0].line}", told)
        conditions.clear()
        _install(path, where, invocation, environment, read)


def _install(path: Path, where: str, install: Invocation, environment: Mapping[str, str], read: Read) -> None:
    for kind, word in install.named:
        if kind in (Kind.REQUIREMENTS, Kind.CONSTRAINTS, Kind.OVERRIDES):
            _file(path, where, kind, str(word), environment, read)
    for word in install.words(Kind.LOCATION, Kind.EDITABLE):
        _source(f"{path.name}:{word.line}", str(word), read)
    packages = install.words(Kind.PACKAGE)
    for word in packages:
        _package(path, word, install, environment, read)
    if install.no_deps and packages and not install.removes:
        names = ", ".join(str(word) for word in packages)
        read.note(where, f"{names}: installed with --no-deps, against what metadata say")


def _package(path: Path, word: Word, install: Invocation, environment: Mapping[str, str], read: Read) -> None:
    where = f"{path.name}:{word.line}"
    if word.redirected:
        read.note(where, f"`{word}` without quotes sends output to a file: no version is asked of pip")
    if word.unset:
        read.note(where, f"`{word}` depends on {_names(word)}, which has no default; left as it is")
        return
    text = re.split("[<>]", word.text, maxsplit=1)[0] if word.redirected else word.text
    requirement = parsed(path, word.line, text)
    if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": ""}):
        read.note(where, f"`{text}` does not hold on python {environment['python_version']}, so it was left out")
        return
    made = replace(statement_of(requirement, where, text), no_deps=install.no_deps)
    _take_place(made, read, removed=install.removes)


def _take_place(made: Statement, read: Read, *, removed: bool) -> None:
    """Put a statement into the place of earlier ones on its package: what is installed last is what is there."""
    read.statements[:] = [item for item in read.statements if item.package != made.package]
    if not removed:
        read.statements.append(made)


def _file(path: Path, where: str, kind: Kind, file: str, environment: Mapping[str, str], read: Read) -> None:
    target = next((place for place in (path.parent / file, path.parent / Path(file).name) if place.is_file()), None)
    if target is None or kind is Kind.OVERRIDES:
        what = "is not beside the Dockerfile" if target is None else "holds overrides"
        read.note(where, f"{file} {what}, so what it says is not in the answer")
        return
    read_requirements(target, text_of(target), environment, read, asks=kind is Kind.REQUIREMENTS, shown=file)


def _source(where: str, text: str, read: Read) -> None:
    version = version_of_file(text)
    if version is None:
        read.note(where, f"`{text}` is installed from its source or an address, which no index pins")
        return
    package = name_of_file(text)
    read.note(where, f"{package} is unpinned: it comes from a file or a source; its name says {version}")
    made = Statement(
        package=package, where=where, text=text, specifier=SpecifierSet(), url=text, version=version, binds=False
    )
    _take_place(made, read, removed=False)
