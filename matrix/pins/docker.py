"""A Dockerfile's install lines, in order, as far as they can be told without building it.

Only the last stage counts, with those that it is built from. What a base image holds, what a script does that is copied
in, and what a condition decides are not known, and the notes say so where they meet one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from matrix.pins.requirements import Read, read_requirements, text_of
from matrix.pins.shell import Install, commands, exported, install_of, redirected, substituted
from matrix.pins.stack import Statement, name_of_file, parsed, statement_of, unreadable, version_of_file

_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)(\w+)\2")
_IMAGE = re.compile(r"(?:^|/)vllm-openai:v(?P<version>\d[\w.]*)$")
_SHELL_CONDITION = frozenset(("if", "case", "for", "while", "until"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction with the line it begins on; `body` are its heredocs, each with the line of its first line."""

    line: int
    word: str
    text: str
    body: tuple[tuple[int, str], ...] = ()
    raw: tuple[str, ...] = ()

    def where(self, path: Path, line: int, word: str) -> str:
        """Return file and line of a word: its own line among those that are joined, else the one given."""
        found = next((at for at, row in enumerate(self.raw) if word in row), None)
        return f"{path.name}:{line if found is None or self.body else self.line + found}"


@dataclass(slots=True, kw_only=True)
class _Stage:
    """A build stage: what it is from, and its instructions."""

    base: str
    line: int
    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)


def instructions(path: Path, text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, continuations joined (a newline keeps its place as a space).

    Raises DataError for a heredoc that does not end.
    """
    lines = text.splitlines()
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", text) else "\\"
    at = 0
    while at < len(lines):
        start = at + 1
        held = ""
        while at < len(lines):
            line = lines[at]
            at += 1
            if line.lstrip().startswith("#") or (held and not line.strip()):
                if not held:
                    break
                continue
            stripped = line.rstrip()
            held += stripped[:-1] + " " if stripped.endswith(escape) else line
            if not stripped.endswith(escape):
                break
        if not held.strip():
            continue
        word, _, rest = held.strip().partition(" ")
        bodies = []
        for dash, _, end in _HEREDOC.findall(rest) if word.upper() in ("RUN", "COPY", "ADD") else ():
            first, body = at + 1, []
            while at < len(lines) and (lines[at].lstrip("\t") if dash else lines[at]) != end:
                body.append(lines[at])
                at += 1
            if at == len(lines):
                raise unreadable(path, start, held.strip(), f"its heredoc `{end}` does not end")
            at += 1
            bodies.append((first, "\n".join(body)))
        raw = tuple(lines[start - 1 : at])
        yield Instruction(line=start, word=word.upper(), text=rest.strip(), body=tuple(bodies), raw=raw)


def read_dockerfile(path: Path, text: str, environment: Mapping[str, str], read: Read) -> None:
    """Add what a Dockerfile installs to `read`; a later install of a package takes the place of an earlier one.

    Raises:
        DataError: an install line names what is no requirement, or a heredoc does not end; the line is named.
    """
    stages, variables = _stages(path, text)
    if not stages:
        raise unreadable(path, 1, text.strip().partition("\n")[0], "a Dockerfile begins with FROM")
    names = {stage.name: stage for stage in stages if stage.name}
    chain = [stages[-1]]
    while (below := names.get(substituted(chain[-1].base, variables)[0])) is not None and below not in chain:
        chain.append(below)
    image, unknown = substituted(chain[-1].base, variables)
    where = f"{path.name}:{chain[-1].line}"
    if unknown:
        read.note(where, f"the base image `{image}` depends on {', '.join(sorted(unknown))}, which has no default")
    elif image != "scratch":
        read.note(where, f"what the base image {image} holds is not known")
        _of_image(image, where, read)
    settings: dict[str, str] = {}
    for stage in reversed(chain):
        for item in stage.instructions:
            _instruction(path, item, environment, settings, variables, read)


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


def _stages(path: Path, text: str) -> tuple[list[_Stage], dict[str, str]]:
    """Return the stages, and the global ARGs with their defaults."""
    stages: list[_Stage] = []
    variables: dict[str, str] = {}
    for item in instructions(path, text):
        if item.word == "FROM":
            words = [word for word in item.text.split() if not word.startswith("--")]
            name = words[2] if len(words) > 2 and words[1].lower() == "as" else ""
            stages.append(_Stage(base=words[0] if words else "", line=item.line, name=name))
        elif stages:
            stages[-1].instructions.append(item)
        elif item.word == "ARG":
            name, equals, value = item.text.partition("=")
            if equals:
                variables[name.strip()] = substituted(_unquoted(value), variables)[0]
    return stages, variables


def _instruction(
    path: Path, item: Instruction, environment: Mapping[str, str], settings: dict[str, str],
    defaults: Mapping[str, str], read: Read,
) -> None:  # fmt: skip
    match item.word:
        case "ARG":
            name, equals, value = item.text.partition("=")
            if equals:
                settings.setdefault(name.strip(), substituted(_unquoted(value), settings)[0])
            elif name.strip() in defaults:
                settings.setdefault(name.strip(), defaults[name.strip()])
        case "ENV":
            settings |= {name: substituted(value, settings)[0] for name, value in _pairs(item.text).items()}
        case "RUN":
            for line, script in _scripts(item):
                _run(path, item, line, script, environment, settings, read)
        case _:
            pass


def _scripts(item: Instruction) -> list[tuple[int, str]]:
    """Return the shell scripts of a RUN with their lines; the exec form is one command, a mounted option none."""
    text = item.text
    while match := re.match(r"--\w+(?:=\S+|\s+\S+)?\s+", text):
        text = text[match.end() :]
    if item.body:
        interpreter = text[: text.index("<<")].strip()
        return [] if re.match(r"python|perl|node", interpreter) else list(item.body)
    if text.startswith("["):
        try:
            words = json.loads(text)
        except ValueError:
            words = None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            if words[:1] and re.fullmatch(r"(?:/bin/)?(?:ba)?sh", words[0]) and "-c" in words[1:-1]:
                return [(item.line, words[-1])]
            return [(item.line, " ".join(_quoted(word) for word in words))]
    return [(item.line, text)]


def _run(
    path: Path, item: Instruction, line: int, script: str, environment: Mapping[str, str], settings: dict[str, str],
    read: Read,
) -> None:  # fmt: skip
    """Read one shell script; variables that it sets count for the commands after them."""
    inner = dict(settings)
    for offset, row in enumerate(script.replace("\\\n", "  ").splitlines()):
        where = f"{path.name}:{line + offset}"
        try:
            found = list(commands(row))
        except ValueError as error:
            if re.search(r"\bpip[\d.]*\s+install\b", row):
                read.note(where, f"not understood ({error}), so what it installs is not in the answer: `{row[:80]}`")
            continue
        for whole in found:
            words, lost = redirected(whole)
            if lost and install_of(words) is not None:
                read.note(where, f"`{lost[0]}` without quotes sends output to a file: no version is asked of pip")
            if not words:
                continue
            inner |= {name: substituted(value, inner)[0] for name, value in exported(words).items()}
            if words[0] in _SHELL_CONDITION and "install" in script:
                read.note(where, f"a condition (`{words[0]} …`) decides what is installed; it was taken to hold")
            install = install_of(words)
            if install is not None:
                _install(path, item, line + offset, install, environment, inner, read)


def _install(
    path: Path, item: Instruction, line: int, install: Install, environment: Mapping[str, str],
    settings: Mapping[str, str], read: Read,
) -> None:  # fmt: skip
    where = f"{path.name}:{line}"
    for kind, file in install.files:
        _file(path, where, kind, substituted(file, settings)[0], environment, read)
    for source in install.sources:
        text, _ = substituted(source, settings)
        _source(item.where(path, line, source), text, read)
    for word in install.requirements:
        text, unknown = substituted(word, settings)
        where = item.where(path, line, word)
        if unknown:
            read.note(where, f"`{word}` depends on {', '.join(sorted(unknown))}, which has no default; left as it is")
            continue
        requirement = parsed(path, int(where.rpartition(":")[2]), text)
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": ""}):
            read.note(where, f"`{text}` does not hold on python {environment['python_version']}, so it was left out")
            continue
        made = replace(statement_of(requirement, where, text), no_deps=install.no_deps)
        _take_place(made, read, removed=install.removes)
    if install.no_deps and install.requirements and not install.removes:
        read.note(where, f"{', '.join(install.requirements)}: installed with --no-deps, against what metadata say")


def _take_place(made: Statement, read: Read, *, removed: bool) -> None:
    """Put a statement into the place of earlier ones on its package: what is installed last is what is there."""
    read.statements[:] = [item for item in read.statements if item.package != made.package]
    if not removed:
        read.statements.append(made)


def _file(path: Path, where: str, kind: str, file: str, environment: Mapping[str, str], read: Read) -> None:
    target = next((place for place in (path.parent / file, path.parent / Path(file).name) if place.is_file()), None)
    if target is None or kind == "o":
        what = "is not beside the Dockerfile" if target is None else "holds overrides"
        read.note(where, f"{file} {what}, so what it says is not in the answer")
        return
    read_requirements(target, text_of(target), environment, read, asks=kind == "r", shown=file)


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


def _pairs(text: str) -> dict[str, str]:
    """Return the variables of an ENV, in either of its forms."""
    found = {match[1]: _unquoted(match[2]) for match in re.finditer(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S*)", text)}
    if found and re.match(r"\w+=", text):
        return found
    name, _, value = text.partition(" ")
    return {name: value.strip()}


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
