"""Trials: one value of one knob tried for real in a cell, to see whether it survives a memory cap.

Run by the cell's own python as children of `python -m matrix thresholds` (docs/thresholds.md). They need the standard
library and what the cell holds, take their errands as JSON lines on standard input, and append what happens as JSON
lines to a file, so that a death loses nothing of what was before it.
"""
