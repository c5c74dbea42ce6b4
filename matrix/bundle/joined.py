"""The one file that unpacks a bundle: the modules of `matrix.bundle.host`, joined as they are written."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).with_name("host")
ORDER = ("arrival", "fit", "linking", "unpacking", "program")
"""Each module after those that it imports; the last one's docstring speaks for the whole."""
_OWN = "matrix.bundle.host"


def join_program(folder: Path = FOLDER) -> str:
    """Return the text of `unbundle.py`: every import once, then each module's own lines, comments included."""
    imports: dict[str, None] = {}
    bodies, title = [], ""
    for name in ORDER:
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        title = ast.get_docstring(tree, clean=False) or ""
        for node in tree.body:
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if is_import or (node is tree.body[0] and title):
                if is_import and not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OWN)):
                    imports[ast.unparse(node)] = None
                for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                    lines[number] = ""
        bodies.append(f"# ---- {name} ----\n\n" + "\n".join(lines).strip("\n"))
    future = "from __future__ import annotations"
    rest = sorted(line for line in imports if line != future)
    head = "\n".join(["#!/usr/bin/env python3", f'"""{title}"""', "", future, "", *rest])
    return "\n\n\n".join([head, *bodies]) + "\n"
