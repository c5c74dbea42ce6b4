"""Reading of setup.py as syntax: `install_requires` and `extras_require` of its call of `setup`; nothing is run.

Names, lists, sums, dictionaries, and what is assigned, appended or extended at module level are followed; a value made
in another way is a remark.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.statements.statement import PYTHON, Force, Inclusion, Notes, Reading, Source, Statement

_FIELDS = {"install_requires": "", "setup_requires": "build", "tests_require": "extra test"}


class _UnfollowedError(Exception):
    """A value that is made in a way that is not followed; holds the node."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.node = node


def read_setup(text: str, file: str) -> Reading:
    """Return what setup.py asks for; scopes are "", `extra NAME` and `build`.

    A file that is no Python is a remark with its line.
    """
    notes = Notes(file, Source.SETUP)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        notes.remark(getattr(error, "lineno", None) or 1, f"this is no Python: {error}")
        return notes.reading()
    reader = _Reader(notes)
    reader.block(tree.body)
    name = ""
    for call in _setups(tree):
        for keyword in call.keywords:
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                name = str(keyword.value.value)
            elif keyword.arg is not None:
                reader.field(keyword.arg, keyword.value)
    return replace(notes.reading(), name=canonicalize_name(name) if name else "")


def _setups(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if getattr(called, "id", getattr(called, "attr", "")) == "setup":
                yield node


class _Reader:
    """Follows the values of names; `field` says what a keyword of `setup` asks for."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: dict[str, list[ast.expr] | dict[str, list[ast.expr]] | ast.expr] = {}
        self._read: dict[str, str] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._either: set[ast.expr] = set()

    def block(self, body: list[ast.stmt]) -> None:
        """Take in assignments, also those below `if`, `try` and `with`: each may be the one that counts."""
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self._kept(value)
                    if (path := self._file(value)) is not None:
                        self._read[name] = path
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._names[name] = self._kept(value)
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    self._extend(name, value)
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key))]
                ):
                    kept = self._names.get(name)
                    if isinstance(kept, dict):
                        kept[key] = self._list_or_none(node.value)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[given])):
                    self._changed(name, method, given)
                case ast.If(body=inner, orelse=other) | ast.For(body=inner, orelse=other):
                    self.block(inner)
                    self.block(other)
                case ast.With(items=items, body=inner):
                    for item in items:
                        if isinstance(item.optional_vars, ast.Name) and (path := self._file(item.context_expr)):
                            self._read[item.optional_vars.id] = path
                    self.block(inner)
                case ast.Try(body=inner):
                    self.block(inner)
                case ast.FunctionDef(name=name):
                    self._functions[name] = node
                case _:
                    continue

    def _changed(self, name: str, method: str, given: ast.expr) -> None:
        match method:
            case "append":
                self._extend(name, ast.List(elts=[given], ctx=ast.Load()))
            case "extend":
                self._extend(name, given)
            case "update":
                self._merge(name, given)
            case _:
                return

    def field(self, name: str, value: ast.expr) -> None:
        """Keep what this keyword of `setup` says."""
        if name in _FIELDS:
            self._say(value, _FIELDS[name])
        elif name == "extras_require":
            try:
                extras = self._dictionary(value)
            except _UnfollowedError as unknown:
                self._notes.remark(_line(unknown.node, value), "extras_require is made in a way that is not followed")
                return
            for extra, items in extras.items():
                for item in items:
                    self._item(item, f"extra {canonicalize_name(extra.partition(':')[0])}" if extra else "")
        elif name == "python_requires" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            self._python(value, value.value)

    def _python(self, node: ast.Constant, text: str) -> None:
        try:
            within = SpecifierSet(text)
        except InvalidSpecifier:
            self._notes.remark(node.lineno, f"python_requires `{text}` is no range")
            return
        self._notes.keep(
            Statement(
                place=self._notes.place(node.lineno),
                package=PYTHON,
                text=f"python_requires={text}",
                source=Source.SETUP,
                force=Force.ASKS,
                specifier=within,
            )
        )

    def _say(self, value: ast.expr, scope: str) -> None:
        try:
            items = self._list(value)
        except _UnfollowedError as unknown:
            self._notes.remark(_line(unknown.node, value), "what is required is made in a way that is not followed")
            return
        for item in items:
            self._item(item, scope)

    def _item(self, node: ast.expr, scope: str) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.strip():
                for text in node.value.strip().splitlines():
                    self._notes.say(text.strip(), node.lineno, Force.ASKS, scope=scope, vague=node in self._either)
        elif (path := self._file(node)) is not None:
            self._notes.keep(
                Inclusion(place=self._notes.place(_line(node, node)), target=path, source=Source.SETUP, scope=scope)
            )
        else:
            self._notes.remark(_line(node, node), "a requirement is made in a way that is not followed")

    def _file(self, node: ast.expr) -> str | None:
        """Return the requirements file whose text the expression is made of, None where it is made of none."""
        if isinstance(node, ast.Constant):
            return None
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in self._read:
                return self._read[inner.id]
            named = inner.value if isinstance(inner, ast.Constant) else None
            if isinstance(named, str) and named.endswith((".txt", ".in")):
                return named
        return None

    def _kept(self, value: ast.expr) -> list[ast.expr] | dict[str, list[ast.expr]] | ast.expr:
        for read in (self._list, self._dictionary):
            try:
                return read(value)
            except _UnfollowedError:
                continue
        return value

    def _extend(self, name: str, value: ast.expr) -> None:
        kept = self._names.get(name)
        if isinstance(kept, list):
            self._names[name] = kept + self._list_or_none(value)

    def _merge(self, name: str, value: ast.expr) -> None:
        kept = self._names.get(name)
        if isinstance(kept, dict):
            try:
                kept.update(self._dictionary(value))
            except _UnfollowedError:
                self._notes.remark(_line(value, value), f"`{name}` is added to in a way that is not followed")

    def _list_or_none(self, value: ast.expr) -> list[ast.expr]:
        try:
            return self._list(value)
        except _UnfollowedError:
            return [value]

    def _list(self, value: ast.expr) -> list[ast.expr]:
        """Return the items of a list; raises _UnfollowedError."""
        match value:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [found for item in items for found in self._spread(item)]
            case ast.Name(id=name) if isinstance(kept := self._names.get(name), list):
                return list(kept)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._list(left) + self._list(right)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)):
                kept = self._names.get(name)
                if isinstance(kept, dict) and key in kept:
                    return list(kept[key])
            case ast.Call(func=ast.Name(id="list" | "sorted" | "set" | "tuple"), args=[inner]):
                return self._list(inner)
            case ast.Constant(value=str()):
                return [value]
            case _ if self._file(value) is not None:
                return [value]
            case ast.Call(func=ast.Name(id=name), args=given) if given:
                return self._looked_up(value, given)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                return self._returned(self._functions.pop(name))
        raise _UnfollowedError(value)

    def _looked_up(self, call: ast.expr, given: list[ast.expr]) -> list[ast.expr]:
        """Return the requirements that a call names by package (`deps_list("torch")`), out of a list of the module."""
        stated = [item for kept in self._names.values() if isinstance(kept, list) for item in kept]
        texts = {item: item.value for item in stated if isinstance(item, ast.Constant) and isinstance(item.value, str)}
        found: list[ast.expr] = []
        for item in given:
            name = item.value if isinstance(item, ast.Constant) else None
            fits = [node for node, text in texts.items() if isinstance(name, str) and _is_of(text, name)]
            if not fits:
                raise _UnfollowedError(call)
            found.append(fits[0])
        return found

    def _returned(self, function: ast.FunctionDef) -> list[ast.expr]:
        """Return what a function without arguments may return; of several lists each is only one that counts."""
        self.block(function.body)
        found = sorted(
            (node for node in ast.walk(function) if isinstance(node, ast.Return)), key=lambda one: one.lineno
        )
        returns = [node.value for node in found if node.value is not None]
        lists = [self._list(value) for value in returns]
        if len(lists) > 1:
            self._either.update(item for items in lists for item in items)
        return [item for items in lists for item in items]

    def _spread(self, item: ast.expr) -> list[ast.expr]:
        match item:
            case ast.Starred(value=inner):
                return self._list(inner)
            case ast.Name(id=name) if isinstance(kept := self._names.get(name), list):
                return list(kept)
            case ast.Subscript(slice=ast.Constant(value=str()) as name):
                with contextlib.suppress(_UnfollowedError):
                    return self._looked_up(item, [name])
                return [item]
            case _:
                return [item]

    def _dictionary(self, value: ast.expr) -> dict[str, list[ast.expr]]:
        """Return the lists of a dictionary by key; raises _UnfollowedError."""
        match value:
            case ast.Name(id=name) if isinstance(kept := self._names.get(name), dict):
                return dict(kept)
            case ast.Dict(keys=keys, values=values):
                found: dict[str, list[ast.expr]] = {}
                for key, item in zip(keys, values, strict=True):
                    if key is None:
                        found.update(self._dictionary(item))
                    elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                        found[key.value] = self._list_or_none(item)
                    else:
                        raise _UnfollowedError(key)
                return found
        raise _UnfollowedError(value)


def _is_of(text: str, name: str) -> bool:
    """Return whether a requirement is one of that package, extras included as they are written."""
    return text == name or (text.startswith(name) and text[len(name)] in "=<>!~ ;@")


def _line(node: ast.AST, fallback: ast.expr) -> int:
    return int(getattr(node, "lineno", getattr(fallback, "lineno", 1)))
