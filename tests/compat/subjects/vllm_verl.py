"""Run single statements of the installed verl, as it writes them, against the installed vLLM and torch.

usage: vllm_verl.py imports FILE PATTERN | gate | kernel FILE | transfer FILE

So one fault is seen whatever else is wrong with the pair; the traceback names verl's file. Prints how many statements
ran: 0 where this verl has none.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def source(file: str) -> Path:
    """Return the path of a file of the installed verl, found without importing it."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)), *file.split("/")[1:])


def parsed(file: str) -> tuple[Path, ast.Module]:
    """Return the file and its tree, an empty one where this verl has no such file."""
    path = source(file)
    return path, ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")


def run(path: Path, node: ast.stmt, names: dict[str, Any]) -> None:
    """Run one statement as if it stood alone in its file."""
    exec(compile(ast.Module([node], []), str(path), "exec"), names)


def imports(file: str, pattern: str) -> None:
    """Run the import statements on modules that PATTERN matches, with the condition or handler around them."""
    path, tree = parsed(file)
    names: dict[str, Any] = {"__name__": "verl_statement", "vllm": importlib.import_module("vllm")}
    count = 0
    for node in tree.body:
        if _prepares(node):
            run(path, node, names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and _names(inner, pattern):
                    run(path, inner, names)
                    count += 1
        elif any(_names(inner, pattern) for inner in ast.walk(node)):
            run(path, node, names)
            count += 1
    print("statements:", count)


def _names(node: ast.AST, pattern: str) -> bool:
    """Return whether this is a statement `from MODULE import ...` on a module that the pattern matches."""
    return isinstance(node, ast.ImportFrom) and re.fullmatch(pattern, node.module or "") is not None


def _prepares(node: ast.stmt) -> bool:
    """Return whether a condition on vLLM's version may need this statement: the version class and constants of it."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("packaging")
    return isinstance(node, ast.Assign) and "VERSION" in ast.unparse(node.targets[0])


def gate() -> None:
    """Import verl's gate on vLLM and what it imports itself, without running the packages around it."""
    root = source("verl")
    for name in ("verl", "verl.utils", "verl.third_party"):
        place = str(root.joinpath(*name.split(".")[1:]))
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [place]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    importlib.import_module("verl.third_party.vllm")
    print("statements: 1")


def kernel(file: str) -> None:
    """Call vLLM's make_fp8_moe_kernel with the arguments of verl's own call, for the signature that it finds."""
    from importlib.metadata import version

    from packaging.version import Version
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import make_fp8_moe_kernel

    path, tree = parsed(file)
    if Version(version("vllm")) >= Version("0.20.0") and "for_vllm20" in path.read_text(encoding="utf-8"):
        print("statements: 0, this verl wraps what vLLM does from 0.20 on")
        return
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "make_fp8_moe_kernel"
    ]
    code = make_fp8_moe_kernel.__code__
    known = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    wide = "routing_tables" in known or len(calls) == 1
    chosen = [call for call in calls if any(word.arg == "routing_tables" for word in call.keywords) == wide]
    for call in chosen:
        keywords = {str(word.arg): None for word in call.keywords}
        print("verl passes:", *keywords)
        try:
            make_fp8_moe_kernel(**keywords)
        except TypeError as error:
            if "make_fp8_moe_kernel() " in str(error):
                raise
        except Exception as error:
            print("the call was taken; with nothing in its arguments the body ends in", type(error).__name__)
    print("statements:", len(chosen))


def transfer(file: str) -> None:
    """Run verl's statement that puts a weight into the transfer buffer, on a weight that is a transposed view."""
    import torch

    path, tree = parsed(file)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and ".copy_(" in (text := ast.unparse(node)) and "self.buffer[offset" in text
    ]
    weight = torch.arange(24.0).reshape(4, 6).t()
    self = types.SimpleNamespace(buffer=torch.zeros(weight.nbytes, dtype=torch.uint8))
    for node in found:
        run(path, node, {"self": self, "offset": 0, "weight": weight, "torch": torch})
        assert torch.equal(self.buffer.view(torch.float32).reshape(weight.shape), weight)
    print("statements:", len(found))


WAYS: dict[str, Callable[..., None]] = {"imports": imports, "gate": gate, "kernel": kernel, "transfer": transfer}
WAYS[sys.argv[1]](*sys.argv[2:])
