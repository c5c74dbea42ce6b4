"""Reads a module's source text into facts, without running it.

griffe reads the arguments of functions. Its visitor keeps one member per name, while what a name is may depend on a
branch (`try: import … except ImportError: X = None`), so the bindings are read from the tree itself.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matrix.surface.classbody import CLASS_DECORATORS, read_class
from matrix.surface.expressions import callee, dotted, literal, text
from matrix.surface.facts import Bind, ModuleFacts, Row, When
from matrix.surface.functions import FUNCTION_DECORATORS, read_function
from matrix.surface.tables import read_aliases, read_fallback, read_lazy, read_tables

_NAMESPACES = ("globals", "vars", "locals")
_RANK = {When.ALWAYS: 0, When.TRY: 1, When.MAYBE: 2, When.HANDLER: 3, When.TYPING: 4}


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector off: with many trees alive it makes `ast.parse` ten times slower."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def read_module(source: bytes, name: str, *, package: bool) -> ModuleFacts:
    """Return the facts of the module `name`; a text that does not parse gives facts that are opaque.

    `package` says that the source is an `__init__.py`, which decides what relative imports mean.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ModuleFacts({"opaque": True})
    reader = Reader(name, package=package)
    reader.block(tree.body, When.ALWAYS)
    return ModuleFacts(reader.finish(tree))


class Reader:
    """Collects the bindings of one module or class body, branch by branch."""

    def __init__(self, module: str, *, package: bool, scope: str = "") -> None:
        """Start an empty collection; `scope` is the qualified name of the class whose body is read."""
        self.module = module
        self.scope = scope
        self._anchor = module.split(".") if package else module.split(".")[:-1]
        self._package = package
        self.names: dict[str, list[Row]] = {}
        self.functions: dict[str, list[Row]] = {}
        self.classes: dict[str, list[Row]] = {}
        self.stars: list[list[str]] = []
        self.rebound: set[str] = set()
        self.registered: list[str] = []
        self.patched: dict[str, list[str]] = {}
        self.exports: list[str] = []
        self.opaque = False

    def finish(self, tree: ast.Module) -> dict[str, Any]:
        """Return the module's facts as stored, parts that are empty left out."""
        fallback = read_fallback(tree)
        lazy = read_lazy(tree)
        tables = read_tables(tree, fallback, lazy)
        data: dict[str, Any] = {
            "names": self.names,
            "functions": self.functions,
            "classes": self.classes,
            "stars": self.stars,
            "rebound": sorted(self.rebound),
            "registered": self.registered,
            "patched": self.patched,
            "exports": self.exports,
            "opaque": self.opaque,
            "tables": tables,
            "getattr": fallback,
            "lazy": lazy,
            "aliases": read_aliases(tree) if lazy else None,
        }
        return {key: value for key, value in data.items() if value}

    def absolute(self, level: int, module: str | None) -> str:
        """Return the absolute name of a module imported with `level` leading dots."""
        if not level:
            return module or ""
        base = self._anchor[: len(self._anchor) - (level - 1)]
        return ".".join([*base, module] if module else base)

    def bind(self, name: str, kind: Bind, node: ast.AST, when: When, *rest: object) -> None:
        """Add one binding; trailing defaults are cut."""
        row: Row = [kind.value, getattr(node, "lineno", 0), when.value, *rest]
        while len(row) > len(["kind", "line", "when"]) and row[-1] in ("", None) and kind is not Bind.CONSTANT:
            row.pop()
        self.names.setdefault(name, []).append(row)

    def block(self, body: Sequence[ast.stmt], when: When) -> None:
        """Collect the statements of a block that is executed under `when`."""
        for node in body:
            self.statement(node, when)

    def statement(self, node: ast.stmt, when: When) -> None:
        """Collect one statement."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, when)
            case ast.ClassDef():
                self._class(node, when)
            case ast.Import() | ast.ImportFrom():
                self._import(node, when)
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value, node, when, "")
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                self.bind(name, Bind.ANNOTATION, node, when, "", "", text(node.annotation))
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, value, node, when, text(node.annotation))
            case ast.AugAssign():
                self._assign(node.target, None, node, when, "")
            case ast.Delete():
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.bind(target.id, Bind.DELETE, node, when)
            case ast.Expr(value=ast.Call() as call):
                self._call(call, when)
            case _:
                self._compound(node, when)

    def _compound(self, node: ast.stmt, when: When) -> None:
        match node:
            case ast.If():
                self._named(node.test, when)
                first, second = branches(node.test, when)
                if first is not None:
                    self.block(node.body, first)
                if second is not None:
                    self.block(node.orelse, second)
            case ast.Try() | ast.TryStar():
                self._try(node, when)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, None, node, when, "")
                self.block(node.body, _weaker(when, When.TRY) if _suppresses(node) else when)
            case ast.For() | ast.AsyncFor():
                self._assign(node.target, None, node, when, "")
                self.block([*node.body, *node.orelse], when)
            case ast.While():
                self._named(node.test, when)
                self.block([*node.body, *node.orelse], _weaker(when, When.MAYBE))
            case ast.Match():
                for case in node.cases:
                    self.block(case.body, _weaker(when, When.MAYBE))
            case _ if type(node).__name__ == "TypeAlias":
                self._assign(node.name, None, node, when, "")  # type: ignore[attr-defined]
            case _:
                pass

    def _try(self, node: ast.Try | ast.TryStar, when: When) -> None:
        caught = [handler for handler in node.handlers if not _raises(handler.body)]
        inner = _weaker(when, When.TRY) if caught else when
        self.block(node.body, inner)
        self.block(node.orelse, inner)
        for handler in caught:
            self.block(handler.body, _weaker(when, When.HANDLER))
        self.block(node.finalbody, when)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, when: When) -> None:
        qualified = f"{self.scope}.{node.name}" if self.scope else node.name
        decorators = [callee(d) for d in node.decorator_list]
        if any(d.rpartition(".")[2] == "overload" for d in decorators):
            return
        if decorators and decorators[0].endswith((".setter", ".deleter")):
            return
        self.functions.setdefault(qualified, []).append(read_function(node, decorators, self.scope))
        self.bind(node.name, Bind.FUNCTION, node, when)
        self.rebound |= _globals(node.body)
        if any(d.rpartition(".")[2] == "requires" for d in decorators):
            self.exports.append(node.name)

    def _class(self, node: ast.ClassDef, when: When) -> None:
        qualified = f"{self.scope}.{node.name}" if self.scope else node.name
        inner = Reader(self.module, package=self._package, scope=qualified)
        inner.block(node.body, When.ALWAYS)
        row = read_class(node, inner.names, is_open=inner.opaque)
        self.classes.setdefault(qualified, []).append(row)
        for mine, theirs in ((self.functions, inner.functions), (self.classes, inner.classes)):
            for key, rows in theirs.items():
                mine.setdefault(key, []).extend(rows)
        self.rebound |= inner.rebound
        self.bind(node.name, Bind.CLASS, node, when)
        if any(callee(d).rpartition(".")[2] == "requires" for d in node.decorator_list):
            self.exports.append(node.name)

    def _import(self, node: ast.Import | ast.ImportFrom, when: When) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                self.bind(alias.asname or module, Bind.MODULE, node, when, module)
            return
        source = self.absolute(node.level, node.module)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append([source, when.value])
            else:
                self.bind(alias.asname or alias.name, Bind.FROM, node, when, source, alias.name)

    def _assign(self, target: ast.expr, value: ast.expr | None, node: ast.stmt, when: When, note: str) -> None:
        match target:
            case ast.Name(id=name):
                if not self._redecorates(name, value):
                    self.bind(name, *_value(value, node, when, note))
                self.opaque |= isinstance(value, ast.Call) and _hands_out_namespace(value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values: Iterable[ast.expr | None] = [None] * len(targets)
                if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(targets):
                    values = value.elts
                for inner, part in zip(targets, values, strict=True):
                    self._assign(inner, part, node, when, "")
            case ast.Starred(value=inner):
                self._assign(inner, None, node, when, "")
            case ast.Attribute(value=owner, attr=name):
                if dotted(owner):
                    self.patched.setdefault(dotted(owner), []).append(name)
            case ast.Subscript():
                self._subscript(target)

    def _redecorates(self, name: str, value: ast.expr | None) -> bool:
        """Return whether a statement is `X = f(X)` for a class or function defined before: a decorator afterwards."""
        if not (isinstance(value, ast.Call) and value.args and dotted(value.args[0]) == name):
            return False
        qualified = f"{self.scope}.{name}" if self.scope else name
        if qualified in self.classes:
            self.classes[qualified][-1][CLASS_DECORATORS].insert(0, callee(value))
        elif qualified in self.functions:
            self.functions[qualified][-1][FUNCTION_DECORATORS].insert(0, callee(value))
        else:
            return False
        return True

    def _subscript(self, target: ast.Subscript) -> None:
        container = callee(target.value) if isinstance(target.value, ast.Call) else dotted(target.value)
        if container in _NAMESPACES:
            self.opaque = True
        elif container in ("sys.modules", "modules"):
            match target.slice:
                case ast.Constant(value=str() as name):
                    self.registered.append(name)
                case ast.Name(id="__name__"):
                    self.registered.append(self.module)
                case _:
                    self.registered.append("?")

    def _call(self, call: ast.Call, when: When) -> None:
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            self.opaque |= callee(function.value) in _NAMESPACES and function.attr in ("update", "setdefault")
            return
        self.opaque |= _hands_out_namespace(call)
        match dotted(function):
            case "exec" | "eval":
                self.opaque = True
            case "setattr" if len(call.args) >= 2:
                self._setattr(call.args[0], call.args[1])
            case "sys.modules.setdefault" | "sys.modules.update":
                self.registered.append("?")
            case _:
                self._named(call, when)

    def _named(self, expression: ast.expr, when: When) -> None:
        """Bind what an expression binds by `:=`."""
        for inner in ast.walk(expression):
            if isinstance(inner, ast.NamedExpr):
                self._assign(inner.target, None, ast.Pass(lineno=expression.lineno), when, "")

    def _setattr(self, owner: ast.expr, name: ast.expr) -> None:
        target = dotted(owner)
        if target:
            known = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else "*"
            self.patched.setdefault(target, []).append(known)
        elif isinstance(owner, ast.Subscript) and dotted(owner.value) in ("sys.modules", "modules"):
            self.opaque = True


def branches(test: ast.expr, when: When) -> tuple[When | None, When | None]:
    """Return under what circumstances the two branches of an `if` run; None for one that never does."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    inner = test.operand if isinstance(test, ast.UnaryOp) else test
    truth: tuple[When | None, When | None]
    if dotted(inner).rpartition(".")[2] == "TYPE_CHECKING" or (
        isinstance(inner, ast.Constant) and inner.value in (False, 0)
    ):
        truth = When.TYPING, when
    elif isinstance(inner, ast.Constant) and inner.value in (True, 1):
        truth = when, None
    elif _is_main(inner):
        truth = None, when
    elif isinstance(test, ast.BoolOp) and any(dotted(v).rpartition(".")[2] == "TYPE_CHECKING" for v in test.values):
        truth = (When.TYPING, when) if isinstance(test.op, ast.And) else (_weaker(when, When.MAYBE),) * 2
    else:
        truth = (_weaker(when, When.MAYBE),) * 2
    return (truth[1], truth[0]) if negated else truth


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and dotted(test.left) == "__name__" and isinstance(test.ops[0], ast.Eq)


def _weaker(outer: When, inner: When) -> When:
    return max(outer, inner, key=_RANK.__getitem__)


def _raises(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _suppresses(node: ast.With | ast.AsyncWith) -> bool:
    return any(callee(item.context_expr).rpartition(".")[2] == "suppress" for item in node.items)


def _value(value: ast.expr | None, node: ast.stmt, when: When, note: str) -> tuple[Any, ...]:
    if value is None:
        return Bind.VALUE, node, when, "", "", note
    constant, known = literal(value)
    if known:
        return Bind.CONSTANT, node, when, "", "", note, constant
    if name := dotted(value):
        return Bind.ALIAS, node, when, name, "", note
    if isinstance(value, ast.Call) and (name := dotted(value.func)):
        return Bind.CALL, node, when, name, "", note
    return Bind.VALUE, node, when, "", "", note


def _hands_out_namespace(call: ast.Call) -> bool:
    """Return whether the module's own namespace is taken or passed on as a dict, which may then be written to.

    vLLM's `LazyLoader("x", globals(), …)` is left out: it writes only the name that the statement binds anyway.
    """
    if dotted(call.func) in _NAMESPACES:
        return not call.args
    if dotted(call.func).rpartition(".")[2] == "LazyLoader":
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(v, ast.Call) and dotted(v.func) in _NAMESPACES and not v.args for v in values)


def _writes_namespace(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Call(func=ast.Name(id="globals"))), *_]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="globals")), attr="update"))):
            return True
    return False


def _globals(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names that a function's body declares global, "*" when it may write others."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif _writes_namespace(node):
            found.add("*")
        else:
            for part in ("body", "orelse", "finalbody"):
                found |= _globals(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                found |= _globals(handler.body)
    return found
