"""The command `config`: what a release of verl makes of keys and values of a command line."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from packaging.version import Version

from matrix.axes import load_axes
from matrix.cell import Axis
from matrix.cli import wiring as parts
from matrix.cli.front import Front
from matrix.config.answer import SHOWN_READS, ConfigAnswer, Fate, KeyAnswer, answer
from matrix.config.dry import DryRun, dry_run
from matrix.config.release import DEFAULT, ConfigRelease
from matrix.config.wiring import load_wiring
from matrix.errors import UsageError
from matrix.home import Home
from matrix.spec import parse_version

_HOW = "Write it like `verl-matrix config verl==0.9.1 trainer.n_gpus_per_node=8`."


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what becomes of each key; 0 where every one does something, 1 where one is refused or does nothing."""
    axes = load_axes()
    version, words, named = _split(args.spec)
    config = args.config_name or named or DEFAULT
    index, home = parts.open_index(args, Home.find(args.home)), Home.find(args.home)

    @functools.cache
    def open_release(wanted: Version) -> ConfigRelease:
        return ConfigRelease(index, home.cache, wanted)

    found = answer(
        parse_version(Axis.VERL, version, axes),
        words,
        open_release,
        releases=axes[Axis.VERL].releases,
        wiring=load_wiring(),
        config=config,
    )
    ran = dry_run(Path(args.env), config, words) if args.env else None
    if args.json:
        text = json.dumps({**_data(found), "dry_run": asdict(ran) if ran else None}, indent=2, ensure_ascii=False)
    else:
        text = "\n".join([*_lines(found), *(_dry_lines(ran, args.env) if ran else ())])
    sys.stdout.write(f"{text}\n")
    return 0 if found.is_fine and (ran is None or ran.is_valid) else 1


_SCRIPT_BYTES = 1 << 20
"""No script of overrides is longer."""


def _split(words: list[str]) -> tuple[str, list[str], str]:
    """Return the version of verl, the keys (each file's in its place, `@FILE`) and what a file names as configuration.

    Raises UsageError.
    """
    named = [word for word in words if word.startswith("verl==")]
    if len(named) != 1:
        raise UsageError(f"config takes one verl==VERSION; {len(named)} were given.", then=_HOW)
    config, keys = "", []
    for word in words:
        if word.startswith("@"):
            found, config = _script(Path(word[1:]))
            keys += found
        elif word != named[0]:
            keys.append(word)
    if not keys:
        raise UsageError("No key is named.", then=_HOW)
    return named[0].removeprefix("verl=="), keys, config


def _script(path: Path) -> tuple[list[str], str]:
    """Return the words of a shell script that look like overrides, and the configuration that it names, else ""."""
    import re
    import shlex

    try:
        with path.open("rb") as file:
            content = file.read(_SCRIPT_BYTES + 1)
        if len(content) > _SCRIPT_BYTES:
            raise ValueError(f"it has more than {_SCRIPT_BYTES} bytes")
        found = shlex.split(content.decode().replace("\r\n", "\n").replace("\\\n", " "), comments=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read as a shell script: {why}.", then=_HOW) from error
    keys = [item for item in found if re.match(r"^(?:\+{0,2}|~)[a-z_]\w*(?:\.\w+)+=", item)]
    if not keys:
        raise UsageError(f"{path} sets no key of hydra.", then=_HOW)
    options = re.findall(r"^--config-(name|path)[= ](\S+)$", "\n".join(_joined(found)), re.MULTILINE)
    if any(option == "path" for option, _ in options):
        sys.stderr.write(f"{path} brings a configuration of its own (--config-path): judged against verl's\n")
        return keys, ""
    return keys, next((value.removesuffix(".yaml") for _, value in options if "$" not in value), "")


def _joined(words: list[str]) -> Iterator[str]:
    """Yield the words, an option that is written without `=` together with the word after it."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        yield f"{word} {after}" if word in ("--config-name", "--config-path") else word


def _lines(found: ConfigAnswer) -> Iterator[str]:
    for item in found.keys:
        yield f"{_mark(item)} {item.override.text}: {_fate(item, found.version)}"
        if item.wrong:
            yield f"    {item.wrong}"
        for wire in item.wires:
            yield f"    {wire.says.value}: {wire.why} [{wire.source}]"
        if item.instead:
            yield f"    instead: {', '.join(item.instead)}"
        if item.had:
            yield f"    other releases that have it: {_span(item.had)}"
        for place in item.reads[:SHOWN_READS] if item.fate is not Fate.UNKNOWN else ():
            yield f"    read at {place}"
    if found.refusal:
        yield "hydra refuses the command line:"
        yield from (f"    {line}" for line in found.refusal.splitlines())
    good, keys = sum(item.is_fine for item in found.keys), len(found.keys)
    of = f"{good} of {keys} {'key' if keys == 1 else 'keys'} {'does' if good == 1 else 'do'} something"
    yield f"verl {found.version}, {found.config}: {of}."


def _dry_lines(ran: DryRun, python: str) -> Iterator[str]:
    if ran.is_valid:
        yield f"dry run by {python}: valid"
    else:
        yield f"dry run by {python}: stopped at {ran.stage}"
        yield from (f"    {line}" for line in ran.error.splitlines())
    yield from (f"    {key} = {value}" for key, value in sorted(ran.effective.items()))


def _mark(item: KeyAnswer) -> str:
    return "ok  " if item.is_fine else "bad " if item.fate is Fate.UNKNOWN or item.wrong else "dead"


def _fate(item: KeyAnswer, version: Version) -> str:
    match item.fate:
        case Fate.READ:
            count = "1 place reads" if len(item.reads) == 1 else f"{len(item.reads)} places read"
            return f"exists (default {item.default}); {count} a field of that name"
        case Fate.INERT:
            return f"exists (default {item.default}), and no code of verl {version} reads a field of that name"
        case Fate.ADDED:
            return "is no key of the files, added with +"
        case Fate.GROUP:
            return "chooses a file of the configuration"
        case Fate.UNKNOWN:
            return f"does not exist in verl {version}"


def _span(versions: tuple[Version, ...]) -> str:
    return f"{versions[0]} to {versions[-1]} ({len(versions)} releases)" if len(versions) > 1 else str(versions[0])


def _data(found: ConfigAnswer) -> dict[str, object]:
    return {
        "verl": str(found.version),
        "config": found.config,
        "refusal": found.refusal,
        "keys": [
            {
                "override": item.override.text,
                "key": item.override.key,
                "fate": item.fate.value,
                "fine": item.is_fine,
                "default": item.default,
                "wrong": item.wrong,
                "instead": list(item.instead),
                "had": [str(version) for version in item.had],
                "reads": [str(place) for place in item.reads],
                "known": [
                    {"says": wire.says.value, "why": wire.why, "to": wire.to, "source": wire.source}
                    for wire in item.wires
                ],
            }
            for item in found.keys
        ],
    }
