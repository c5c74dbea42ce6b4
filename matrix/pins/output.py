"""What is written of a set: constraints, lock, overrides and evidence, each whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from matrix import __version__
from matrix.atomic import replace_file
from matrix.errors import NoSpaceError, UsageError
from matrix.pins.commands import install_command
from matrix.pins.option import Option
from matrix.pins.policy import Policy
from matrix.pins.stack import Stack
from matrix.pins.want import Want
from matrix.resolve.lock import parse_lock
from matrix.verdict import deviation_words

SCHEMA = 1
CONSTRAINTS, LOCK, OVERRIDES, EVIDENCE = "constraints.txt", "pylock.toml", "overrides.toml", "evidence.json"


def constraints(option: Option, policy: Policy, at: datetime) -> str:
    """Return the `constraints.txt` of a set: every package of its lock, with what it rests on above."""
    proof = option.proof
    tried = f"tried at {proof.tier} on {proof.machine}, {proof.at:%Y-%m-%d}" if proof.tier and proof.at else "not tried"
    lines = [
        f"# {option.cell.name}",
        f"# verl-matrix {__version__}, {at:%Y-%m-%d}: {'proven' if option.proven(policy) else 'not proven'}, {tried}",
        f"# untested: {', '.join(option.untested) or 'nothing'}",
        "# check again: verl-matrix pins verify constraints.txt",
    ]
    lines += [f"# overrides {text}: install with uv and overrides.toml" for text in option.overrides]
    lines += [f"{name}=={version}" for name, version in sorted(option.versions.items())]
    return "\n".join(lines) + "\n"


def overrides(option: Option) -> str:
    """Return the `[tool.uv]` table that lets uv install a set against its metadata; "" where none is needed."""
    if not option.overrides:
        return ""
    rows = "".join(f"  {json.dumps(text)},\n" for text in option.overrides)
    return f"# For pyproject.toml: {deviation_words(option.cell)}\n[tool.uv]\noverride-dependencies = [\n{rows}]\n"


def hashes(option: Option) -> dict[str, list[str]]:
    """Return the SHA-256 of every file that the lock names, by package."""
    import re

    return {
        package.name: sorted(set(re.findall(r'sha256 = "([0-9a-f]{64})"', package.entry)))
        for package in (parse_lock(option.lock).packages if option.lock else ())
    }


def evidence(
    option: Option, policy: Policy, stack: Stack, want: Want, labels: tuple[str, ...], at: datetime
) -> dict[str, object]:
    """Return the `evidence.json` of a set as plain data (evidence.schema.json)."""
    return {
        "schema": SCHEMA,
        "tool": f"verl-matrix {__version__}",
        "at": at.isoformat(),
        "labels": list(labels),
        "input": stack.to_json(),
        "want": want.to_json(),
        "policy": policy.to_json(),
        "set": option.to_json(policy),
        "hashes": hashes(option),
        "lock": "sha256:" + hashlib.sha256(option.lock.encode()).hexdigest(),
    }


def write(folder: Path, option: Option, policy: Policy, data: Mapping[str, object], at: datetime) -> tuple[Path, ...]:
    """Return the files of a set once they are written into `folder`; a stale `overrides.toml` there is taken away.

    Raises:
        NoSpaceError: the disk is full; no half of a file is left.
        UsageError: nothing can be written there.
    """
    texts = {
        CONSTRAINTS: constraints(option, policy, at),
        LOCK: option.lock,
        OVERRIDES: overrides(option),
        EVIDENCE: json.dumps(data, indent=2, ensure_ascii=False) + "\n",
    }
    files = []
    try:
        for name, text in texts.items():
            path = folder / name
            if text:
                replace_file(path, text.encode())
                files.append(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"No room is left for {folder}.", then="Free some space, or give another --out."
            ) from error
        raise UsageError(
            f"Nothing can be written to {folder}: {error.strerror or error}.", then="Give another folder with --out."
        ) from error
    return tuple(files)


def command(option: Option, folder: Path | None) -> str:
    """Return the command that installs a set: from its lock with hashes where that was written, else by its pins."""
    if folder is None:
        return install_command(option.cell.requirements, overrides=option.overrides)
    import shlex

    return f"uv pip install -r {shlex.quote(str(folder / LOCK))}"
