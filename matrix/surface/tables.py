"""Reads the containers and functions that decide at run time which names a module has.

Three kinds: `__all__`; the tables that a module's `__getattr__` looks into; the import structures of a module that
replaces itself by transformers' `_LazyModule`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from matrix.surface.expressions import callee, dotted, strings
from matrix.surface.facts import Row

_STRUCTURE = "import_structure"
_FAST_PROCESSOR = "models.*.image_processing_*_fast"


def read_tables(tree: ast.Module, fallback: Row | None, lazy: Row | None) -> dict[str, Row]:
    """Return the rows of `__all__` and of the containers that `fallback` and `lazy` name (`facts.Table`)."""
    wanted = {"__all__", *(fallback[1] if fallback else ()), *(lazy[0] if lazy else ())}
    tables: dict[str, _Collector] = {}
    for node in _statements(tree.body):
        name = _changed(node)
        if name in wanted:
            tables.setdefault(name, _Collector(name)).change(node)
    return {name: table.row() for name, table in tables.items()}


def read_fallback(tree: ast.Module) -> Row | None:
    """Return the row of the module's `__getattr__` (`facts.Fallback`), or None without one.

    Of several, in branches or one after the other, each may be the one that stays.
    """
    rows = [row for node in _statements(tree.body) if (row := _fallback_in(node)) is not None]
    if not rows:
        return None
    names = sorted({name for row in rows for name in row[0]})
    tables = sorted({table for row in rows for table in row[1]})
    return [names, tables, all(row[2] for row in rows)]


def _fallback_in(node: ast.stmt) -> Row | None:
    match node:
        case ast.FunctionDef(name="__getattr__") if node.args.args:
            return _fallback(node)
        case ast.Assign(targets=[ast.Name(id="__getattr__")]):
            return [[], [], False]
        case ast.Assign(targets=[ast.Tuple(elts=targets)]):
            # lazy_loader: `__getattr__, __dir__, __all__ = attach(...)`
            return [[], [], False] if any(dotted(t) == "__getattr__" for t in targets) else None
        case ast.ImportFrom(names=names) if any((a.asname or a.name) == "__getattr__" for a in names):
            return [[], [], False]
    return None


def read_lazy(tree: ast.Module) -> Row | None:
    """Return the row of a module that puts a lazy one in its own place (`facts.LazyModule`), or None."""
    replaced, is_open = False, False
    tables: set[str] = set()
    derived: set[str] = set()
    filled: set[str] = set()
    extra: set[str] = set()
    for node in _statements(tree.body):
        changed = _changed(node)
        if changed.endswith(_STRUCTURE):
            tables.add(changed)
        for call in _calls(node):
            match callee(call.func).rpartition(".")[2]:
                case "_LazyModule":
                    replaced = replaced or _replaces_itself(node)
                    shown, more = _extras(call)
                    extra |= shown
                    is_open |= more
                case "define_import_structure":
                    derived.add(_derived(call))
                    filled.add(changed)
    return [sorted(tables - filled), sorted(derived), sorted(extra), is_open] if replaced else None


def read_aliases(tree: ast.Module) -> dict[str, str]:
    """Return old submodule names that lead to another one, both relative to the package; `*` stands for a word.

    transformers 5 keeps some modules importable under the names they had: by `_create_module_alias` up to 5.10, by a
    table and a finder on `sys.meta_path` later, and for image processors by a rule.
    """
    found: dict[str, str] = {}
    for node in _statements(tree.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table) if "MODULE_ALIASES" in name:
                for key, value in zip(table.keys, table.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        found[str(key.value)] = str(value.value)
            case ast.Assign(targets=[ast.Name(id=name)]) if "FAST_IMAGE_PROCESSOR_MODULE" in name:
                found[_FAST_PROCESSOR] = _FAST_PROCESSOR.removesuffix("_fast")
            case ast.Expr(value=ast.Call(func=ast.Name(id="_create_module_alias"), args=[alias, target])):
                old = _tail(alias)
                if old.endswith("_fast") and not isinstance(target, ast.Constant):
                    found[_FAST_PROCESSOR] = _FAST_PROCESSOR.removesuffix("_fast")
                elif old and isinstance(target, ast.Constant):
                    found[old] = str(target.value).lstrip(".")
    return found


def _tail(node: ast.expr) -> str:
    """Return what follows the package's own name in an f-string such as `f"{__name__}.tokenization_utils"`."""
    if not isinstance(node, ast.JoinedStr):
        return ""
    last = node.values[-1]
    return str(last.value).lstrip(".") if isinstance(last, ast.Constant) else ""


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, branches included, function and class bodies not."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _calls(node: ast.stmt) -> Iterator[ast.Call]:
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)) and node.value is not None:
        yield from (inner for inner in ast.walk(node.value) if isinstance(inner, ast.Call))


def _replaces_itself(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(t, ast.Subscript) and dotted(t.value).endswith("modules") for t in node.targets)


def _extras(call: ast.Call) -> tuple[set[str], bool]:
    names: set[str] = set()
    is_open = False
    for keyword in call.keywords:
        if keyword.arg == "extra_objects" and isinstance(keyword.value, ast.Dict):
            names |= {k.value for k in keyword.value.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
        elif keyword.arg in ("extra_objects", "explicit_import_shortcut"):
            if isinstance(keyword.value, ast.Dict):
                for value in keyword.value.values:
                    names |= set(strings(value) or ())
            else:
                is_open = True
    return names, is_open


def _derived(call: ast.Call) -> str:
    prefixes = [k.value.value for k in call.keywords if k.arg == "prefix" and isinstance(k.value, ast.Constant)]
    return str(prefixes[0]) if prefixes else ""


def _changed(node: ast.stmt) -> str:
    """Return the dotted name of the container that a statement creates or changes, "" for none."""
    match node:
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return dotted(target.value if isinstance(target, ast.Subscript) else target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
            while isinstance(owner, (ast.Subscript, ast.Call, ast.Attribute)) and not dotted(owner):
                owner = owner.func if isinstance(owner, ast.Call) else owner.value
            name = dotted(owner)
            # `structure.setdefault(k, []).extend(…)` spells the method into the chain.
            return name.removesuffix(".setdefault").removesuffix(".get")
    return ""


class _Collector:
    """One container, changed statement by statement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, str | list[str] | None] = {}
        self.spreads: list[str] = []
        self.listings: list[str] = []
        self.is_open = False

    def row(self) -> Row:
        return [self.entries, self.spreads, self.listings, self.is_open]

    def change(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=key), *_], value=value):
                self._put(key, value)
            case ast.AugAssign(target=ast.Subscript(slice=key), value=value):
                self._put(key, value)
            case ast.Assign(value=value) | ast.AugAssign(value=value):
                self._add(value)
            case ast.AnnAssign(value=ast.expr() as value):
                self._add(value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
                self._method(owner, method, call)

    def _method(self, owner: ast.expr, method: str, call: ast.Call) -> None:
        first = call.args[0] if call.args else None
        match owner:
            case ast.Subscript(slice=key) if method in ("extend", "append", "update", "add") and first is not None:
                self._put(key, ast.List(elts=[first]) if method in ("append", "add") else first)
            case ast.Call(args=[key, *_]) if first is not None:
                self._put(key, ast.List(elts=[first]) if method in ("append", "add") else first)
            case ast.Name() if method == "setdefault" and first is not None:
                self._put(first, call.args[1] if len(call.args) > 1 else ast.List(elts=[]), soft=True)
            case ast.Name() if method in ("append", "add") and first is not None:
                self._add(ast.List(elts=[first]))
            case ast.Name() if method in ("update", "extend") and first is not None:
                self._add(first)
            case ast.Name() if method in ("remove", "pop", "sort", "keys", "values", "items", "get", "discard"):
                pass
            case _:
                self.is_open = True

    def _put(self, key: ast.expr, value: ast.expr, *, soft: bool = False) -> None:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            # A key that is not seen is harmless when it brings no names with it.
            self.is_open |= strings(value) != []
            return
        name = key.value
        found = _values(value)
        before = self.entries.get(name)
        if found == "*":
            self.listings.append(name)
            self.entries.setdefault(name, [])
        elif isinstance(before, list) and isinstance(found, list):
            self.entries[name] = [*before, *(v for v in found if v not in before)]
        elif not soft or name not in self.entries:
            self.entries[name] = found

    def _add(self, value: ast.expr) -> None:
        match value:
            case ast.Dict(keys=keys, values=values):
                for key, inner in zip(keys, values, strict=True):
                    if key is None:
                        self._spread(inner)
                    else:
                        self._put(key, inner)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                for element in elements:
                    if isinstance(element, ast.Starred):
                        self._spread(element.value)
                    else:
                        self._put(element, ast.Constant(value=None))
            case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
                self._add(left)
                self._add(right)
            case ast.Call(func=ast.Name(id="list" | "set" | "tuple" | "sorted" | "dict" | "frozenset"), args=args):
                for inner in args:
                    self._add(inner)
            case ast.DictComp() | ast.ListComp() | ast.SetComp() if self._over_itself(value):
                pass
            case _:
                self._spread(value)

    def _over_itself(self, node: ast.DictComp | ast.ListComp | ast.SetComp) -> bool:
        """Return whether a comprehension only converts this container (`{k: set(v) for k, v in t.items()}`)."""
        source = node.generators[0].iter
        over = source.func.value if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else source
        return dotted(over) == self.name

    def _spread(self, value: ast.expr) -> None:
        name = dotted(value)
        if not name and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            name = dotted(value.func.value) if value.func.attr in ("keys", "copy") else ""
        if name == self.name:
            return
        if name:
            self.spreads.append(name)
        else:
            self.is_open = True


def _values(value: ast.expr) -> str | list[str] | None:
    """Return what a table holds for a key: a string, strings, "*" for the names of a module, None for other things."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.ListComp):
        source = value.generators[0].iter
        return "*" if isinstance(source, ast.Call) and dotted(source.func) == "dir" else None
    return strings(value)


def _fallback(function: ast.FunctionDef) -> Row:
    name = function.args.args[-1].arg
    reader = _FallbackReader(name)
    ends = reader.block(function.body, known=False)
    return [sorted(reader.names), sorted(reader.tables), reader.closed and ends]


class _FallbackReader:
    """Walks a module's `__getattr__`: which names lead to a `return`, and whether all others end in an error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: set[str] = set()
        self.tables: set[str] = set()
        self.closed = True

    def block(self, body: Sequence[ast.stmt], *, known: bool) -> bool:
        """Walk a block; `known` says that the name was matched before. Return whether its end cannot be reached."""
        for node in body:
            match node:
                case ast.Raise():
                    return True
                case ast.Return():
                    self.closed &= known
                    return True
                case ast.If():
                    matched, refused = self._test(node.test)
                    first = self.block(node.body, known=known or matched)
                    second = self.block(node.orelse, known=known or refused)
                    if first and second and node.orelse:
                        return True
                    # `if name not in TABLE: raise` leaves only names that are in the table.
                    known |= refused and first and not node.orelse
                case ast.Try():
                    inside = self.block([*node.body, *node.orelse], known=known)
                    handled = [self.block(handler.body, known=known) for handler in node.handlers]
                    if inside and all(handled):
                        return True
                case ast.With():
                    if self.block(node.body, known=known):
                        return True
                case ast.For() | ast.While() | ast.Match():
                    self.block(node.body if not isinstance(node, ast.Match) else [], known=known)
                    self.closed &= not isinstance(node, ast.Match)
        return False

    def _test(self, test: ast.expr) -> tuple[bool, bool]:
        """Return whether the test's truth, and its falsehood, mean that the name is one of those collected."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                matched, refused = self._test(inner)
                return refused, matched
            case ast.Compare(left=ast.Name(id=left), ops=[op], comparators=[right]) if left == self.name:
                known = self._known(op, right)
                return (False, known) if isinstance(op, (ast.NotIn, ast.NotEq)) else (known, False)
            case ast.BoolOp(op=ast.And(), values=values):
                # Every operand is looked at: each may name a table.
                tests = [self._test(value)[0] for value in values]
                return any(tests), False
            case ast.BoolOp(op=ast.Or(), values=values):
                tests = [self._test(value)[0] for value in values]
                return all(tests), False
        return False, False

    def _known(self, op: ast.cmpop, right: ast.expr) -> bool:
        if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and isinstance(right.value, str):
            self.names.add(right.value)
            return True
        if not isinstance(op, (ast.In, ast.NotIn)):
            return False
        items = strings(right)
        if items is not None:
            self.names.update(items)
            return True
        if isinstance(right, ast.Call) and callee(right) in ("globals", "vars", "locals"):
            # A name in the module's own namespace is found without `__getattr__`.
            return True
        table = dotted(right)
        if table:
            self.tables.add(table)
        return bool(table)
