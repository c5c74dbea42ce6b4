"""The commands that people copy: how a set is installed, with what it overrides."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def install_command(requirements: Sequence[str], *, overrides: Sequence[str] = (), no_deps: bool = False) -> str:
    """Return the command that installs these requirements: pip's, or uv's where something is overridden.

    pip cannot override. The overrides go through a file that the same line writes.
    """
    words = " ".join(shlex.quote(text) for text in requirements)
    if not overrides:
        return f"pip install {'--no-deps ' if no_deps else ''}{words}"
    lines = " ".join(shlex.quote(text) for text in overrides)
    return f"printf '%s\\n' {lines} > overrides.txt && uv pip install --overrides overrides.txt {words}"
