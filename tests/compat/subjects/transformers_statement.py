"""Run the import statements of one file of an installed package that name NAME, as that file writes them.

usage: transformers_statement.py FILE NAME. A statement inside `try` is a guard and is left out.
The traceback names FILE.
"""

from __future__ import annotations

import ast
import sys

from transformers_tiny import say, source


def main() -> None:
    file, name = sys.argv[1:]
    path = source(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.Try) for node in ast.walk(outer)}
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in guarded and name in {item.name for item in node.names}
    ]
    for node in found:
        exec(compile(ast.Module([node], []), str(path), "exec"), {"__name__": file[:-3].replace("/", ".")})
    say(statements=len(found))


main()
