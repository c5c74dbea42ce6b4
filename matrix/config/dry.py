"""A dry run: a configuration through verl's own files, hydra and checks, in an environment that has them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import ToolError
from matrix.probing.folder import probes_folder
from matrix.resolve.process import Children, surroundings

TIMEOUT_S = 600.0
"""Importing verl with torch takes half a minute where nothing is compiled yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """How far a configuration came: `stage` compose, resolve, validate, typed or done, `error` what stopped it there.

    `effective` holds what reaches the engines, by `actor.engine.KEY`, where the release makes classes of its nodes.
    """

    stage: str
    error: str
    effective: dict[str, object]

    @property
    def is_valid(self) -> bool:
        """Return whether verl's own check let it through; that it then fits its classes is `stage` done."""
        return self.stage == "done"


def dry_run(python: Path, config: str, overrides: Sequence[str]) -> DryRun:
    """Return how far the overrides come in the environment of `python`; starts no training.

    Raises:
        ToolError: the interpreter cannot be run, or its verl or hydra cannot be imported.
    """
    script = probes_folder() / "subjects" / "config_dry_run.py"
    with tempfile.TemporaryDirectory(prefix="verl-matrix-dry-") as place:
        folder = Path(place)
        asked = folder / "asked.json"
        asked.write_text(json.dumps({"asked": list(overrides)}), encoding="utf-8")
        try:
            ended = Children().run(
                [str(python), str(script), config, str(asked)],
                folder=folder,
                env={**surroundings(), "HF_HUB_OFFLINE": "1"},
                timeout_s=TIMEOUT_S,
            )
        except OSError as error:
            raise ToolError(f"{python} cannot be run: {error.strerror}.", then="--env takes an interpreter.") from error
    lines = [line for line in ended.stdout.splitlines() if line.startswith(_MARK)]
    try:
        found = json.loads(lines[-1].removeprefix(_MARK))["asked"]
    except (IndexError, ValueError, KeyError, TypeError):
        how = f"was stopped after {TIMEOUT_S:.0f} s" if ended.code is None else f"ended with {ended.code}"
        raise ToolError(f"The dry run {how}.", why=ended.stderr.strip()[-500:], then=_HOW.format(python)) from None
    if found["stage"] == "compose" and found["error"].startswith(("ModuleNotFoundError", "ImportError")):
        raise ToolError(f"{python} cannot compose verl's configuration.", why=found["error"], then=_HOW.format(python))
    return DryRun(stage=found["stage"], error=found["error"], effective=found["effective"])


_MARK = "DRY-RUN "
_HOW = "Check that `{} -c 'import verl, hydra'` works."
