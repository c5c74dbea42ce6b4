"""Statements: what a file says about the versions of packages, each with its file and line; nothing is ever run."""
