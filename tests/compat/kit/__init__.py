"""What probes share: the cell they run in, children that may die, and trials of known failures.

Runs inside a cell's environment, whose Python may be 3.10, with nothing but pytest; imports nothing of the tool that
schedules it. What goes in is one JSON file (`VERL_MATRIX_CELL`), what comes out are lines of
JSON (`VERL_MATRIX_TRIALS`).
"""

from kit.cell import Cell, Record, read_cell
from kit.child import Ended, run_python
from kit.trial import Trial

__all__ = ["Cell", "Ended", "Record", "Trial", "read_cell", "run_python"]
