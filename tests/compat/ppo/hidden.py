"""A package that is hidden from every Python process of a run, as if it were not installed."""

from __future__ import annotations

from pathlib import Path

_CUSTOMIZE = '''"""Hides {package}: Python's own finder answers as it does for what is not installed."""

import importlib.machinery

_find = importlib.machinery.PathFinder.find_spec


def find_spec(cls, name, path=None, target=None):
    if name.partition(".")[0] == "{package}":
        return None
    return _find(name, path, target)


importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
'''


def hide(package: str, folder: Path) -> Path:
    """Write a `sitecustomize` that hides `package` and return the folder to put first on PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(package=package), encoding="utf-8")
    return folder
