"""`data FILE…`: whether verl can read, prompt with and score data files; 0 where it can, 1 where something is wrong."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.cli import wiring
from matrix.cli.front import Front
from matrix.errors import DataError, ToolError, UsageError
from matrix.home import Home

if TYPE_CHECKING:
    from matrix.dataset.check import Checked
    from matrix.dataset.remark import FileReport, Remark
    from matrix.dataset.scorer import Scorer


def run(args: argparse.Namespace, front: Front) -> int:
    """Print what is wrong with the files; 0 nothing (or notes only), 1 something."""
    from matrix.dataset.check import Question, check

    if "" in args.files:
        raise UsageError("A file has no name: an empty word was given.", then="Name parquet files, or a folder.")
    question = Question(
        prompt_key=args.prompt_key,
        source_key=args.source_key,
        scorers=_scorers(args),
        count_tokens=_tokenizer(args.tokenizer) if args.tokenizer else None,
        longest_tokens=args.max_prompt_length or 0,
    )
    found = check([Path(word) for word in args.files], question)
    if args.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_text(found))
    return 0 if found.fit else 1


def _scorers(args: argparse.Namespace) -> tuple[Scorer, ...]:
    """Return what the asked releases score: `--verl`'s, `all` of axes.toml, else that of the verl installed here."""
    from matrix.axes import load_axes
    from matrix.cell import Axis
    from matrix.dataset.releases import scorer_installed, scorer_of_release
    from matrix.spec import parse_version

    if not args.verl:
        here = scorer_installed()
        return (here,) if here is not None else ()
    axes = load_axes()
    every = args.verl == "all"
    versions = list(axes[Axis.VERL].releases) if every else [parse_version(Axis.VERL, args.verl, axes)]
    index = wiring.open_index(args, Home.find(args.home))
    return tuple(scorer_of_release(index, version) for version in versions)


def _tokenizer(path: str) -> Callable[[Any], int]:
    """Return what counts a prompt's tokens with a `tokenizer.json` (or the folder it lies in); the template adds some.

    Raises ToolError where the package tokenizers is not installed, DataError where the file cannot be read.
    """
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError as error:
        raise ToolError(
            "Tokens cannot be counted: the package tokenizers does not import here.",
            why=str(error),
            then="Install tokenizers, or leave --tokenizer out: characters are counted in any case.",
        ) from error
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        made = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise DataError(file, "", f"is no tokenizer: {error}", then="Give a tokenizer.json.") from error

    def count(prompt: Any) -> int:
        texts = [message["content"] for message in prompt if isinstance(message, dict) and message.get("content")]
        return sum(len(made.encode(text, add_special_tokens=False)) for text in texts if isinstance(text, str))

    return count


def _text(found: Checked) -> str:
    lines = []
    for file in found.files:
        lines += _about(file)
    lines += [line for remark in found.between for line in _lines(remark)]
    versions = [scorer.version for scorer in found.question.scorers]
    if versions:
        lines.append(f"rewards looked up in verl {', '.join(versions)}")
    elif any(file.sources for file in found.files):
        lines.append("whether verl knows each data_source was not looked up: give --verl VERSION, or --verl all")
    bad = sum(not file.fit for file in found.files)
    lines.append("fit" if found.fit else f"not fit: {bad} of {len(found.files)} files" if bad else "not fit together")
    return "\n".join(_CONTROL.sub(lambda sign: f"\\x{ord(sign[0]):02x}", line) for line in lines) + "\n"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a data file holds is shown, and none of it may steer the terminal."""
_SHOWN = 24
_WIDEST = 100
"""So many columns are shown, and so much of what one of them is called; --json has all."""


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _about(file: FileReport) -> list[str]:
    lines = [file.path]
    if file.rows is not None:
        groups = _counted(file.row_groups, "row group")
        lines.append(f"  {_counted(file.rows, 'row')} in {groups}, {_counted(file.size, 'byte')}")
        lines += [f"  {_short(name)}: {_short(kind)}" for name, kind in list(file.columns.items())[:_SHOWN]]
        if len(file.columns) > _SHOWN:
            lines.append(f"  … and {_counted(len(file.columns) - _SHOWN, 'column')} more; --json has all")
    if file.sources:
        most = sorted(file.sources.items(), key=lambda item: -item[1])[:8]
        lines.append("  data_source: " + ", ".join(f"{_short(name)} ({count})" for name, count in most))
    if file.figures.get("characters_most"):
        least, middle, most_chars = (file.figures[f"characters_{word}"] for word in ("least", "median", "most"))
        lines.append(f"  prompts of {least:.0f} to {most_chars:.0f} characters, median {middle:.0f}")
    if "tokens_most" in file.figures:
        least, middle, most_tokens = (file.figures[f"tokens_{word}"] for word in ("least", "median", "most"))
        lines.append(f"  prompts of {least:.0f} to {most_tokens:.0f} tokens, median {middle:.0f}, without the template")
    return lines + [line for remark in file.remarks for line in _lines(remark)]


def _lines(remark: Remark) -> list[str]:
    from matrix.dataset.remark import Kind

    where = ""
    # How many rows repeat a prompt is what the message says.
    if remark.rows and remark.kind is not Kind.DUPLICATE:
        where = f" ({_counted(remark.rows, 'row')}" + (f", first {remark.first})" if remark.first is not None else ")")
    then = [f"    {remark.then}"] if remark.then else []
    return [f"  {remark.gravity.value}: {remark.message}{where}", *then]
