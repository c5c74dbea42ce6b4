"""Reads functions into facts: their parameters, and what they do when they are used as decorators."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from matrix.surface.expressions import callee, dotted, text
from matrix.surface.facts import Row

# Where a function's row holds its decorators.
FUNCTION_DECORATORS = 3


def read_function(node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: Sequence[str], scope: str) -> Row:
    """Return a function's row: line, compact parameters, return annotation, decorators, what it does as decorator."""
    return [node.lineno, compact(node.args, scope), text(node.returns), list(decorators), wraps(node)]


def compact(arguments: ast.arguments, scope: str = "") -> str:
    """Return a signature as one string that `facts.parameters` reads, e.g. `self prompts? =seed? **kwargs`.

    `scope` is the class whose body the function stands in; Python puts its name before private parameters.
    """
    from griffe import ParameterKind, get_parameters

    prefix = {
        ParameterKind.positional_only: "/",
        ParameterKind.positional_or_keyword: "",
        ParameterKind.var_positional: "*",
        ParameterKind.keyword_only: "=",
        ParameterKind.var_keyword: "**",
    }
    words = []
    for name, _, kind, default in get_parameters(arguments):
        if scope and name.startswith("__") and not name.endswith("__"):
            name = f"_{scope.rpartition('.')[2].lstrip('_')}{name}"
        variadic = kind in (ParameterKind.var_positional, ParameterKind.var_keyword)
        words.append(f"{prefix[kind]}{name}{'?' if default is not None and not variadic else ''}")
    return " ".join(words)


def wraps(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return what `node` does to a callable when it is used as a decorator; "" where that is not seen.

    `same`: it hands back what it was given; `patched`: that, after storing attributes on it or handing it to others.
    `kept`: it hands back a wrapper that says `functools.wraps` and takes `*args, **kwargs`, so the signature still
    decides at the call. `factory same`, `factory kept`, …: a call of it with arguments gives such a decorator.
    """
    own = _verdict(node)
    if own:
        return own
    inner = {f.name: f for f in _functions(node.body)}
    given = {dotted(r.value) for r in _returns(node.body) if r.value is not None}
    if given and given <= inner.keys():
        verdicts = {_verdict(inner[name]) for name in given}
        if len(verdicts) == 1 and (verdict := verdicts.pop()):
            return f"factory {verdict}"
    return ""


def _verdict(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = [*node.args.posonlyargs, *node.args.args]
    if not arguments:
        return ""
    first = arguments[0].arg
    inner = {f.name: f for f in _functions(node.body)}
    values = [r.value for r in _returns(node.body) if r.value is not None]
    if not values:
        return ""
    verdicts = {_returned(value, first, inner) for value in values}
    if verdicts == {"same"}:
        return "patched" if _stores_on(node, first) else "same"
    return "kept" if verdicts <= {"same", "kept"} else ""


def _returned(value: ast.expr, first: str, inner: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]) -> str:
    name = dotted(value)
    if name == first:
        return "same"
    function = inner.get(name)
    if function is None or function.args.vararg is None or function.args.kwarg is None:
        return ""
    if function.args.posonlyargs or function.args.args or function.args.kwonlyargs:
        return ""
    wrapped = any(
        callee(d).rpartition(".")[2] == "wraps"
        and isinstance(d, ast.Call)
        and len(d.args) > 0
        and dotted(d.args[0]) == first
        for d in function.decorator_list
    )
    # Without a change to the keywords on the way in, a call that the wrapped function refuses is refused.
    return "kept" if wrapped and not _touches(function, function.args.kwarg.arg) else ""


def _stores_on(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and dotted(inner.value) == name:
            return True
        if isinstance(inner, ast.Call) and any(dotted(argument) == name for argument in inner.args):
            return True
    return False


def _touches(function: ast.FunctionDef | ast.AsyncFunctionDef, keywords: str) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == keywords and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Attribute) and dotted(node.value) == keywords:
            return True
        if isinstance(node, ast.Subscript) and dotted(node.value) == keywords and not isinstance(node.ctx, ast.Load):
            return True
    return False


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _statements(handler.body)
        for case in getattr(node, "cases", ()):
            yield from _statements(case.body)


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in _statements(body) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _returns(body: Sequence[ast.stmt]) -> Iterator[ast.Return]:
    return (node for node in _statements(body) if isinstance(node, ast.Return))
