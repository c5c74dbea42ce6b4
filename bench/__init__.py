"""Benches: launches of verl in turns, their figures and verdicts (`python -m bench`); and the speed of the tool itself."""
