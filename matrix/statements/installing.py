"""Commands that install packages: the requirements in the words of `pip install`, `uv pip install`, `uv add`, `conda`.

What a command names is a statement; `-r`, `-c` and paths are inclusions; a version in a variable that is not known, and
a bound that the shell takes for a redirection, are remarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from matrix.statements.shell import Command, Word, commands
from matrix.statements.statement import Force, Inclusion, Notes, Statement

_VALUED = frozenset(
    {
        *(
            "-i",
            "--index-url",
            "--extra-index-url",
            "-f",
            "--find-links",
            "--index",
            "--default-index",
            "-t",
            "--target",
        ),
        *("--prefix", "--root", "--python", "-p", "--python-version", "--platform", "--abi", "--implementation"),
        *("--only-binary", "--no-binary", "--config-settings", "-C", "--config-setting", "--global-option", "--group"),
        *("--build-option", "--install-option", "--retries", "--resume-retries", "--timeout", "--trusted-host"),
        *("--cache-dir", "--proxy", "--upgrade-strategy", "--progress-bar", "--report", "--log", "--src", "--cert"),
        *("--client-cert", "--index-strategy", "--exclude-newer", "--overrides", "--override", "--prerelease"),
        *("--resolution", "--link-mode", "--torch-backend", "--extra", "--upgrade-package", "-P", "--refresh-package"),
        *("--keyring-provider", "--no-build-isolation-package", "--reinstall-package", "--project", "--directory"),
        *("--optional", "-n", "--name", "--channel", "--file"),
    }
)
"""Options of pip, uv and conda that take the next word; `-c` is pip's constraint."""
_INDEXES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index")
INDEX_VARIABLES = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_INDEX", "UV_DEFAULT_INDEX"),
)
"""Variables that name an index or a folder of wheels (pip's and uv's documentation)."""
_BEFORE = frozenset({"sudo", "time", "env", "exec", "command", "then", "do", "else", "if", "!", "{", "RUN", "$", ">"})
_PIP = re.compile(r"(?:.*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?$")
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
    words = list(command)
    while words and (words[0].text in _BEFORE or re.match(r"[A-Za-z_]\w*=", words[0].text)):
        del words[0]
    texts = [word.text for word in words]
    if not texts:
        return
    if _CONDA.match(texts[0]) and len(texts) > 1 and texts[1] in ("install", "create"):
        _conda(notes, words[2:], scope, force)
    elif (start := _after_verb(texts, "install")) is not None:
        _pip(notes, words[start:], scope, force, elsewhere=elsewhere)
    elif force is Force.INSTALLS and (start := _after_verb(texts, "uninstall")) is not None:
        for _, word in _arguments(words[start:]):
            if re.fullmatch(r"[A-Za-z0-9][\w.-]*", word.text) and not word.conditional:
                notes.say(word.text, word.line, Force.REMOVES, scope=scope)


def _after_verb(texts: Sequence[str], wanted: str) -> int | None:
    """Return where the arguments of this command of pip or uv begin, None where it is another."""
    at = 0
    if _PYTHON.match(texts[0]):
        if texts[1:2] != ["-m"]:
            return None
        at = 2
    if texts[at : at + 1] == ["uv"]:
        verb = texts[at + 1 : at + 3]
        if verb[:1] == ["add"] and wanted == "install":
            return at + 2
        return at + 3 if verb == ["pip", wanted] else None
    if at < len(texts) and _PIP.match(texts[at]):
        for place in range(at + 1, len(texts)):
            if texts[place] == wanted:
                return place + 1
            if not texts[place].startswith("-"):
                return None
    return None


def _pip(notes: Notes, words: Sequence[Word], scope: str, force: Force, *, elsewhere: bool) -> None:
    options = {word.text for word in words}
    no_deps = "--no-deps" in options
    elsewhere = elsewhere or any(is_elsewhere(url) for url in _values(words, _INDEXES))
    for option, word in _arguments(words):
        if word.unset:
            notes.remark(
                word.line, f"what is installed as `{word.text}` depends on {', '.join(word.unset)}, not known here"
            )
        elif option in ("-r", "--requirement", "-c", "--constraint"):
            is_constraint = option in ("-c", "--constraint")
            notes.keep(_inclusion(notes, word, scope, word.text, constraint=is_constraint, no_deps=no_deps))
        else:
            _one(notes, word, scope, force, no_deps=no_deps, elsewhere=elsewhere)


def _values(words: Sequence[Word], options: Sequence[str]) -> Iterator[str]:
    """Yield the values of these options."""
    for word, after in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word.text.partition("=")
        if name in options:
            yield value if equals else after.text if after is not None else ""


def is_elsewhere(url: str) -> bool:
    """Return whether the address is another index than PyPI and its mirrors."""
    return not re.search(r"pypi|/simple/?$", urlsplit(url).geturl()) or "pytorch" in url or "nvidia" in url


def _arguments(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Yield what is installed, each with the option before it (`-r`, `-c`, `-e`), "" for none."""
    pending = ""
    for word in words:
        name, equals, value = word.text.partition("=")
        if pending:
            if pending in ("-r", "--requirement", "-c", "--constraint", "-e", "--editable"):
                yield pending, word
            pending = ""
        elif name in ("--requirement", "--constraint", "--editable") and equals:
            yield name, Word(text=value, line=word.line, unset=word.unset)
        elif word.text in ("-r", "--requirement", "-c", "--constraint", "-e", "--editable") or word.text in _VALUED:
            pending = word.text
        elif re.match(r"-[rc]\S", word.text):
            yield word.text[:2], Word(text=word.text[2:], line=word.line, unset=word.unset)
        elif not word.text.startswith("-") and word.text:
            yield "", word


def _one(notes: Notes, word: Word, scope: str, force: Force, *, no_deps: bool, elsewhere: bool) -> None:
    text = word.text
    if text.startswith((".", "~")) or text.endswith(".whl") or ("/" in text and " @ " not in text):
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
    for _, word in _arguments(words):
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
