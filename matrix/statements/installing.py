"""Commands that install packages: the requirements in the words of `pip install`, `uv pip install`, `uv add`, `conda`.

What a command names is a statement; `-r`, `-c` and paths are inclusions; a version in a variable that is not known, and
a bound that the shell takes for a redirection, are remarks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from matrix.statements.invocation import Invocation, Kind, bare, invocation_of, is_location, told_apart
from matrix.statements.shell import Command, Word, commands
from matrix.statements.statement import Force, Inclusion, Notes, Statement

INDEX_VARIABLES = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_INDEX", "UV_DEFAULT_INDEX"),
)
"""Variables that name an index or a folder of wheels (pip's and uv's documentation)."""
_CONDA = re.compile(r"(?:.*/)?(?:conda|mamba|micromamba)$")
_CONDA_SPEC = re.compile(r"([A-Za-z0-9][\w.-]*?)(==?|[<>!~]=?)([\w.*,<>=!]+)$")


def read_commands(
    notes: Notes, text: str, first: int, scope: str, known: Mapping[str, str], force: Force = Force.INSTALLS
) -> None:
    """Keep in `notes` what the shell text installs; its first line has the number `first`."""
    elsewhere = any(is_elsewhere(known[name]) for name in INDEX_VARIABLES if known.get(name))
    for command in commands(text, known, first):
        read_command(notes, command, scope, force, elsewhere=elsewhere)


def read_command(
    notes: Notes, command: Command, scope: str, force: Force = Force.INSTALLS, *, elsewhere: bool = False
) -> None:
    """Keep in `notes` what one command installs; nothing where it installs nothing.

    `elsewhere` says that variables name another index than PyPI.
    """
    words = bare(command)
    if len(words) > 1 and _CONDA.match(words[0].text) and words[1].text in ("install", "create"):
        _conda(notes, words[2:], scope, force)
        return
    found = invocation_of(command)
    if found is None:
        return
    if found.removes:
        for word in found.words(Kind.PACKAGE) if force is Force.INSTALLS else ():
            if re.fullmatch(r"[A-Za-z0-9][\w.-]*", word.text) and not word.conditional:
                notes.say(word.text, word.line, Force.REMOVES, scope=scope)
        return
    _pip(notes, found, scope, force, elsewhere=elsewhere or any(is_elsewhere(url) for url in found.indexes))


def _pip(notes: Notes, found: Invocation, scope: str, force: Force, *, elsewhere: bool) -> None:
    for kind, word in found.named:
        if kind is Kind.OVERRIDES:
            continue
        if word.unset:
            notes.remark(word.line, f"what is installed as `{word}` depends on {', '.join(word.unset)}, not known here")
        elif kind in (Kind.REQUIREMENTS, Kind.CONSTRAINTS):
            is_constraint = kind is Kind.CONSTRAINTS
            notes.keep(_inclusion(notes, word, scope, word.text, constraint=is_constraint, no_deps=found.no_deps))
        else:
            _one(notes, word, scope, force, no_deps=found.no_deps, elsewhere=elsewhere)


def is_elsewhere(url: str) -> bool:
    """Return whether the address is another index than PyPI and its mirrors."""
    return not re.search(r"pypi|/simple/?$", urlsplit(url).geturl()) or "pytorch" in url or "nvidia" in url


def _one(notes: Notes, word: Word, scope: str, force: Force, *, no_deps: bool, elsewhere: bool) -> None:
    text = word.text
    if is_location(text) or text.endswith(".whl"):
        _located(notes, word, scope, force, no_deps=no_deps)
        return
    if word.redirected:
        notes.remark(word.line, f"`{text}` is not quoted: a shell takes `<` or `>` for a file, and the bound is lost")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*=\d[\w.*]*", text):
        notes.remark(word.line, f"`{text}` has one `=`, which pip refuses")
        return
    notes.say(text, word.line, force, scope=scope, no_deps=no_deps, elsewhere=elsewhere, vague=word.conditional)


def _located(notes: Notes, word: Word, scope: str, force: Force, *, no_deps: bool) -> None:
    """Keep a wheel as the version in its name, a path of the repository as an inclusion; leave other addresses."""
    text = word.text
    named = text.partition("#")[0].partition("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if named.endswith(".whl"):
        try:
            name, version, _, _ = parse_wheel_filename(unquote(named))
        except InvalidWheelFilename:
            return
        notes.keep(
            Statement(
                place=notes.place(word.line),
                package=name,
                text=text,
                source=notes.source,
                force=force,
                specifier=SpecifierSet(f"=={version}"),
                scope=scope,
                url=text,
                no_deps=no_deps,
                elsewhere=True,
            )
        )
    elif " @ " in text or re.match(r"[\w.-]+(\[[^\]]*\])?@", text):
        notes.say(text, word.line, force, scope=scope, no_deps=no_deps, elsewhere=True)
    elif "://" not in text:
        match = re.fullmatch(r"([^\[]+)(?:\[([^\]]*)\])?", text)
        if match is not None:
            extras = tuple(sorted(part.strip() for part in (match[2] or "").split(",") if part.strip()))
            notes.keep(_inclusion(notes, word, scope, match[1], extras=extras, no_deps=no_deps))


def _inclusion(
    notes: Notes,
    word: Word,
    scope: str,
    target: str,
    *,
    extras: tuple[str, ...] = (),
    constraint: bool = False,
    no_deps: bool = False,
) -> Inclusion:
    return Inclusion(
        place=notes.place(word.line),
        target=target.rstrip("/") or "/",
        source=notes.source,
        scope=scope,
        extras=extras,
        constraint=constraint,
        no_deps=no_deps,
    )


def _conda(notes: Notes, words: Sequence[Word], scope: str, force: Force) -> None:
    for _, word in told_apart(words):
        if not word.unset and (found := conda_statement(notes, word.text, word.line, scope, force)) is not None:
            notes.keep(found)


def conda_statement(notes: Notes, text: str, line: int, scope: str, force: Force) -> Statement | None:
    """Return what a spec of conda says (`python=3.10` is 3.10 and its patch releases), None where it names no version.

    Source: conda's documentation, "Package match specifications".
    """
    bare = text.rpartition("::")[2].replace(" ", "")
    match = _CONDA_SPEC.match(bare)
    if match is None:
        return None
    name, operator, version = match.groups()
    version = version.partition("=")[0] if operator == "=" else version
    if operator == "=":
        operator, version = "==", f"{version.rstrip('.*')}.*"
    try:
        within = SpecifierSet(f"{operator}{version}")
    except InvalidSpecifier:
        return None
    return Statement(
        place=notes.place(line),
        package=canonicalize_name(name),
        text=text,
        source=notes.source,
        force=force,
        specifier=within,
        scope=scope,
        elsewhere=True,
    )
