"""What importing a module executes first: its imports and what it takes from imported modules, read from its text.

Only what is sure to run is kept. A block behind a condition that the text does not decide (`if HAS_TRITON:`, a loop,
the body of a function) is left out whole: it says nothing certain. A `try` is kept with its handlers. Annotations are
left out too, since newer interpreters do not evaluate them.

Rows are plain lists, so that they can be kept like facts (`matrix.surface.factstore`):

    ["import", line, module]                    import a.b
    ["from", line, module, [name, …]]           from a.b import c, * included
    ["attr", line, module, "c.d"]               a.b.c.d, used while the module is executed
    ["raise", line, exception]                  exception "" raises the handled one again
    ["try", body, [[names or None, handler], …], orelse]
"""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matrix.surface.expressions import dotted
from matrix.surface.facts import ModuleFacts, Row
from matrix.surface.skeleton import skeleton

_NOT_NOW = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_STORED = re.compile(
    rb"""^[ \t]*(?!self\.|cls\.)[A-Za-z_][\w.]*\.(\w+)[ \t]*=[^=]|\bsetattr\([^,()]+,\s*["'](\w+)["']""", re.MULTILINE
)
_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING")


def read_imports(source: bytes, name: str, *, package: bool) -> ModuleFacts:
    """Return what importing the module `name` executes first; nothing for a text that does not parse.

    `data`: `imports`, the rows; `bound`, the names that its statements bind, for a package and for a module with
    `__getattr__`; `getattr`, whether it has one; `patched`, names of attributes that it stores anywhere but on `self`.
    """
    tree = _parsed(source)
    if tree is None:
        return ModuleFacts({})
    anchor = name.split(".") if package else name.split(".")[:-1]
    reader = _Reader(anchor, tree)
    rows = reader.block(tree.body)
    served = "__getattr__" in reader.bound
    data = {
        "imports": rows,
        "bound": sorted(reader.bound) if package or served else [],
        "getattr": served,
        "patched": sorted(stored_attributes(source)),
    }
    return ModuleFacts({key: value for key, value in data.items() if value})


def _parsed(source: bytes) -> ast.Module | None:
    """Return the tree of a text, without the bodies of its functions where that is safe; None if it does not parse."""
    for text in (skeleton(source), source):
        if text is not None:
            with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                warnings.simplefilter("ignore", SyntaxWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                return ast.parse(text)
    return None


class _Reader:
    """Reads the rows of one module."""

    def __init__(self, anchor: Sequence[str], tree: ast.Module) -> None:
        """Note which names stand for imported modules: those that one import binds and nothing else does."""
        self._anchor = anchor
        self._modules: dict[str, tuple[str, str]] = {}
        counts: dict[str, int] = {}
        for name, origin in self._bindings(tree.body):
            counts[name] = counts.get(name, 0) + 1
            if origin is not None:
                self._modules[name] = origin
        self.bound = frozenset(counts)
        self._modules = {name: origin for name, origin in self._modules.items() if counts[name] == 1}

    def _bindings(self, body: Iterable[ast.stmt]) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """Yield every name that statements of a module bind, with the module and the name that an import gives it."""
        for node in body:
            match node:
                case ast.Import():
                    # `import a.b` and `import a.c` bind the same `a`, so it counts once.
                    yield from {_imported(alias) for alias in node.names}
                case ast.ImportFrom():
                    module = self.absolute(node.level, node.module)
                    yield from ((alias.asname or alias.name, (module, alias.name)) for alias in node.names)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield node.name, None
                case ast.If() if (held := _checking(node.test)) is not None:
                    yield from self._bindings(node.body if held else node.orelse)
                case _:
                    yield from ((name, None) for name in _stored(node))
                    for inner in _blocks(node):
                        yield from self._bindings(inner)

    def absolute(self, level: int, module: str | None) -> str:
        """Return the absolute name of a module imported with `level` leading dots."""
        if not level:
            return module or ""
        base = self._anchor[: len(self._anchor) - (level - 1)]
        return ".".join([*base, module] if module else base)

    def block(self, body: Iterable[ast.stmt]) -> list[Row]:
        """Return the rows of statements that are executed one after the other."""
        rows: list[Row] = []
        for node in body:
            rows += self._statement(node)
        return rows

    def _statement(self, node: ast.stmt) -> list[Row]:
        match node:
            case ast.Import():
                return [["import", node.lineno, alias.name] for alias in node.names]
            case ast.ImportFrom():
                module = self.absolute(node.level, node.module)
                names = [alias.name for alias in node.names]
                return [["from", node.lineno, module, names]] if module != "__future__" else []
            case ast.If():
                held = _checking(node.test)
                return [] if held is None else self.block(node.body if held else node.orelse)
            case ast.Try():
                return self._attempt(node)
            case ast.With() | ast.AsyncWith():
                return self._with(node)
            case ast.ClassDef():
                first = [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
                return [*self._uses(first), *self.block(node.body)]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
                return self._uses([*node.decorator_list, *defaults])
            case ast.Raise():
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                return [["raise", node.lineno, dotted(raised).rpartition(".")[2] or ("" if raised is None else "?")]]
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                return self._uses([node.value] if node.value is not None else [])
        return []

    def _attempt(self, node: ast.Try) -> list[Row]:
        handlers = [[_caught(handler.type), self.block(handler.body)] for handler in node.handlers]
        body, orelse = self.block(node.body), self.block(node.orelse)
        return [["try", body, handlers, orelse], *self.block(node.finalbody)]

    def _with(self, node: ast.With | ast.AsyncWith) -> list[Row]:
        rows: list[Row] = []
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and dotted(call.func).rpartition(".")[2] == "suppress":
                names = [dotted(argument).rpartition(".")[2] for argument in call.args]
                return [*rows, ["try", self.block(node.body), [[names, []]], []]]
            rows += self._uses([call])
        # Any other manager may swallow what is raised in it.
        return [*rows, ["try", self.block(node.body), [[None, []]], []]]

    def _uses(self, expressions: Iterable[ast.expr]) -> list[Row]:
        """Return the attribute chains on imported modules that evaluating these expressions is sure to follow."""
        rows: list[Row] = []
        for node in expressions:
            match node:
                case ast.Attribute() if chain := dotted(node):
                    name, _, rest = chain.partition(".")
                    if name in self._modules:
                        module, member = self._modules[name]
                        rows.append(["attr", node.lineno, module, f"{member}.{rest}" if member else rest])
                case ast.BoolOp(values=[first, *_]):
                    rows += self._uses([first])
                case ast.IfExp(test=test):
                    rows += self._uses([test])
                case ast.Compare(left=left, comparators=[first, *_]):
                    rows += self._uses([left, first])
                case ast.expr() if not isinstance(node, _NOT_NOW):
                    rows += self._uses(_parts(node))
        return rows


def _imported(alias: ast.alias) -> tuple[str, tuple[str, str]]:
    """Return the name that `import a.b` binds, and what it stands for."""
    root = alias.name.partition(".")[0]
    return (alias.asname, (alias.name, "")) if alias.asname else (root, (root, ""))


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions that evaluating an expression evaluates directly."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            found.append(child)
        elif isinstance(child, ast.keyword):
            found.append(child.value)
    return found


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement that are executed in the same namespace."""
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, [])
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield handler.body


def _stored(node: ast.stmt) -> Iterator[str]:
    """Yield the names that the head of a statement binds or deletes: assignments, loop variables, `with … as`."""
    heads: list[Any] = [
        *getattr(node, "targets", ()),
        *(item.optional_vars for item in getattr(node, "items", ())),
        *(getattr(node, field, None) for field in ("target", "value", "test", "iter")),
    ]
    for head in heads:
        for inner in ast.walk(head) if isinstance(head, ast.expr) else ():
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                yield inner.id


def _checking(test: ast.expr) -> bool | None:
    """Return what a condition is at run time where it only asks for `TYPE_CHECKING` or is a literal, else None."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            held = _checking(inner)
            return None if held is None else not held
        case ast.Constant(value=bool() | int() as value):
            return bool(value)
        case ast.BoolOp(op=ast.And(), values=values) if any(_checking(value) is False for value in values):
            return False
    return False if dotted(test) in _CHECKING else None


def _caught(node: ast.expr | None) -> list[str] | None:
    """Return the last names of the exceptions that a handler catches, None for all."""
    if node is None:
        return None
    return [dotted(item).rpartition(".")[2] for item in (node.elts if isinstance(node, ast.Tuple) else [node])]


def stored_attributes(source: bytes) -> set[str]:
    """Return the last names of the attributes that a text stores, but for those of `self` (`a.b = …`, `setattr`)."""
    return {(plain or named).decode() for plain, named in _STORED.findall(source)}
