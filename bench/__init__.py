"""Measuring: so far the tool itself, how fast and how big it is (`nox -s speed`)."""
