"""Benches: launches of verl in turns, their figures and verdicts (`python -m bench`); the speed of the tool itself."""
