"""The program on another machine: reads an errand, visits its cell there, and writes a line for all that comes of it.

It ends, with all that it started, as soon as nobody listens any more: whoever started it holds its standard input open.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.cell import parse_name
from matrix.errors import MatrixError, ToolError
from matrix.executors import errand as wire
from matrix.executors.errand import Errand
from matrix.executors.manner import open_visitor
from matrix.executors.parcel import UV
from matrix.home import Home
from matrix.observe import Observation
from matrix.store import Store

if TYPE_CHECKING:
    from matrix.job import Visitor
    from matrix.probing.machine import Machine

LEAVE_S = 20.0
Say = Callable[[str], None]


class Outbox(Store):
    """A store for one visit, on the machine of the visit: what is added to it is told at once."""

    def __init__(self, folder: Path, say: Say, known: tuple[Observation, ...] = ()) -> None:
        """Hold what is known already, which is not told."""
        super().__init__(folder)
        self._say: Say = lambda line: None
        self.add(*known)
        self._say = say

    def add(self, *observations: Observation) -> None:
        """Keep these and tell them."""
        super().add(*observations)
        for item in observations:
            self._say(wire.observed(item))


def main() -> int:
    """Visit the cell of the errand on standard input; 0 once the visit is told, whatever came of it."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What anything else prints is no line of ours.
    os.dup2(2, 1)
    guard = threading.Lock()

    def say(line: str) -> None:
        with guard:
            out.write(f"{line}\n")
            out.flush()

    with tempfile.TemporaryDirectory(prefix="vm-visit-") as folder:
        visit(_read(0), Path(folder), say, listening=0)
    return 0


def _read(descriptor: int) -> Errand:
    """Return the errand on the first line; read without a buffer, which another thread would lock later."""
    text = b""
    while not text.endswith(b"\n"):
        block = os.read(descriptor, 1 << 20)
        if not block:
            raise ToolError("The errand was cut short.")
        text += block
    try:
        return Errand.from_line(text.decode("utf-8"))
    except (KeyError, ValueError, TypeError) as error:
        raise ToolError(f"The errand cannot be read: {type(error).__name__}: {error}.") from error


def visit(errand: Errand, folder: Path, say: Say, *, listening: int) -> None:
    """Tell all that comes of a visit; it is stopped once the descriptor `listening` is at its end."""
    over = threading.Event()
    try:
        visitor = _visitor(errand, folder, say)
        threading.Thread(target=_end_with, args=(listening, visitor, over), daemon=True).start()
        probed = visitor.visit(parse_name(errand.cell), errand.resolved, lambda text: say(wire.note(text)))
        say(wire.done(probed))
    except MatrixError as error:
        say(wire.refused(error))
    finally:
        over.set()


def _visitor(errand: Errand, folder: Path, say: Say) -> Visitor:
    home = Home.find(None if errand.home is None else str(errand.home))
    home.prepare()
    heard: set[Path] = set()

    def heed(path: Path) -> None:
        if path not in heard:
            heard.add(path)
            say(wire.planned(path))

    return open_visitor(
        errand.manner,
        home=home,
        store=Outbox(folder / "store", say, errand.known),
        lock=lambda resolved: errand.lock,
        say=lambda text: say(wire.note(text)),
        uv=_uv(),
        machine=granted(),
        heed=heed,
    )


def _uv() -> Path | None:
    """Return the uv that came with this tool, None where it runs from an installation."""
    found = Path(__file__).parents[2] / UV
    return found if found.is_file() else None


def granted() -> Machine:
    """Return this machine with the GPUs that were granted, and no others.

    What a cell without GPUs says then does not depend on whether the machine that it came to has some.
    """
    from matrix.gpus.inventory import take_inventory
    from matrix.probing.machine import this_machine

    return replace(this_machine(), gpus=take_inventory().names)


def _end_with(listening: int, visitor: Visitor, over: threading.Event) -> None:
    """End the visit once whoever asked for it is gone, and this process where the visit does not end itself."""
    while os.read(listening, 1):
        continue
    if over.is_set():
        return
    visitor.stop()
    if not over.wait(LEAVE_S):
        os._exit(1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
