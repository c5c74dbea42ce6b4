"""Drift: where the statements of a repository about versions contradict each other, or what the index has."""
