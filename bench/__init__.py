"""Benches: launches of verl in turns, their figures and verdicts (`python -m bench`); and how fast the tool itself is."""
