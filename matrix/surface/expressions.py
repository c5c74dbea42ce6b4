"""Expressions of a source text: what they name, what they hold, what they would be as text."""

from __future__ import annotations

import ast
from typing import Any

_PLAIN = (str, int, float, bool, type(None))
# Longer literals decide nothing (prompts, tables of weights) and would only swell the facts.
_LONGEST_TEXT = 300
_LONGEST_TUPLE = 64


def dotted(node: ast.expr | None) -> str:
    """Return the dotted name that a chain of attributes spells, "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def callee(node: ast.expr) -> str:
    """Return the dotted name of a name, of a call of one, or of a subscript of one; "?" for anything else."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return dotted(node) or "?"


def literal(node: ast.expr) -> tuple[Any, bool]:
    """Return the value of a literal and whether it is one that is kept (str, number, bool, None, tuple of these)."""
    match node:
        case ast.Constant(value=value) if isinstance(value, _PLAIN):
            return value, not (isinstance(value, str) and len(value) > _LONGEST_TEXT)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value, True
        case ast.Tuple(elts=elements) if len(elements) <= _LONGEST_TUPLE:
            parts = [literal(element) for element in elements]
            return [value for value, _ in parts], all(known for _, known in parts)
    return None, False


def text(node: ast.expr | None) -> str:
    """Return an annotation as source text; a string annotation is returned without its quotes, none as ""."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str() as value):
            return value
        case ast.Name(id=name):
            return name
        case ast.Attribute():
            return dotted(node) or ast.unparse(node)
    return ast.unparse(node)


def strings(node: ast.expr) -> list[str] | None:
    """Return the strings of a list, tuple or set display, of a call that wraps one (`set([...])`), or None."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            values = [e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)]
            return values if len(values) == len(elements) else None
        case ast.Call(func=ast.Name(id="list" | "set" | "tuple" | "frozenset"), args=[], keywords=[]):
            return []
        case ast.Call(func=ast.Name(id="list" | "set" | "tuple" | "frozenset"), args=[inner], keywords=[]):
            return strings(inner)
    return None
