"""What every Python process of a run does first: its collector waits, and a package may be hidden from it.

Measured on a CPU (two cores, processor seconds): `verl.trainer.main_ppo` 5.9 to 6.2 without, 5.1 to 5.3 with; verl's
workers 7.3 and 7.1; verl's vLLM server 10.5 and 8.8 (vLLM 0.24).
"""

from __future__ import annotations

from pathlib import Path

_LATER = '''"""Read by every Python process of a run when it starts."""

import gc
import importlib.machinery
import importlib.util
import os
import sys

# Imports make a million objects that stay, and the collector would go through them time and again. With the first
# collection, asked for or due, it is as it was.
_given = gc.get_threshold()


def _as_it_was(phase, _):
    gc.callbacks.remove(_as_it_was)
    gc.set_threshold(*_given)


gc.callbacks.append(_as_it_was)
gc.set_threshold({objects}, *_given[1:])

# The environment may have one of its own, which this one stands before.
_here = os.path.dirname(os.path.abspath(__file__))
_others = [path for path in sys.path if os.path.abspath(path or ".") != _here]
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))
'''
_HIDE = """
# Python's own finder answers as it does for what is not installed.
_find = importlib.machinery.PathFinder.find_spec


def find_spec(cls, name, path=None, target=None):
    if name.partition(".")[0] == "{package}":
        return None
    return _find(name, path, target)


importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
OBJECTS = 1_500_000
"""So many are made before the first collection; verl's server with vLLM 0.24 makes 1.26 million when it imports."""


def customize(folder: Path, *, hidden: str = "") -> Path:
    """Write a `sitecustomize` that does both, hide a package only where one is named, and return its folder.

    The folder is to be put first on PYTHONPATH.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = _LATER.format(objects=OBJECTS) + (_HIDE.format(package=hidden) if hidden else "")
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder
