"""Reads class bodies into facts: bases, fields, and what methods store on `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from matrix.surface.expressions import callee, dotted, text
from matrix.surface.facts import Bind, Row, When

_NO_FIELD = ("ClassVar",)
# Where a class's row holds its decorators.
CLASS_DECORATORS = 3


def read_class(node: ast.ClassDef, names: Mapping[str, list[Row]], *, is_open: bool) -> Row:
    """Return a class's row in the order of `facts.Klass`; `names` are the bindings of its body."""
    attributes: dict[str, list[Row]] = {}
    for method in _flat(node.body):
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_open |= _stores(method, attributes)
    return [
        node.lineno,
        [_base(base) for base in node.bases],
        {k.arg or "**": text(k.value) for k in node.keywords},
        [callee(d) for d in node.decorator_list],
        _options(node.decorator_list),
        names,
        [_field(n) for n in _flat(node.body) if isinstance(n, ast.AnnAssign) and _is_field(n)],
        attributes,
        is_open,
    ]


def _base(node: ast.expr) -> str:
    """Return a base class as a dotted name without its type arguments; "?" for one that is computed."""
    return dotted(node.value if isinstance(node, ast.Subscript) else node) or "?"


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            if not (isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")):
                yield from _flat(node.body)
            yield from _flat(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", ()):
                yield from _flat(handler.body)


def _options(decorators: Sequence[ast.expr]) -> dict[str, object]:
    return {
        f"{callee(call).rpartition('.')[2]}.{k.arg}": k.value.value
        for call in decorators
        if isinstance(call, ast.Call)
        for k in call.keywords
        if k.arg and isinstance(k.value, ast.Constant) and isinstance(k.value.value, (bool, str, int))
    }


def _is_field(node: ast.AnnAssign) -> bool:
    if not isinstance(node.target, ast.Name):
        return False
    return not any(word in text(node.annotation) for word in _NO_FIELD)


def _field(node: ast.AnnAssign) -> Row:
    assert isinstance(node.target, ast.Name)
    annotation = text(node.annotation)
    default, init, keyword_only, alias, known = node.value is not None, True, None, "", True
    if annotation in ("KW_ONLY", "dataclasses.KW_ONLY"):
        return ["*", "KW_ONLY"]
    if isinstance(node.value, ast.Call) and callee(node.value).rpartition(".")[2].lower() in ("field", "privateattr"):
        options = {k.arg: k.value for k in node.value.keywords}
        literals = {k: v.value for k, v in options.items() if isinstance(v, ast.Constant)}
        # pydantic's Field takes its default by position, `...` meaning none; dataclasses.field has only keywords.
        first = node.value.args[0] if node.value.args else None
        default = bool({"default", "default_factory", "factory"} & options.keys()) or (
            first is not None and not (isinstance(first, ast.Constant) and first.value is ...)
        )
        init = literals.get("init") is not False
        keyword_only = bool(literals["kw_only"]) if "kw_only" in literals else None
        alias = str(literals.get("alias") or "")
    elif isinstance(node.value, ast.Call):
        known = not callee(node.value).rpartition(".")[2].islower()
    return [node.target.id, annotation, default, init, keyword_only, alias, known]


def _stores(method: ast.FunctionDef | ast.AsyncFunctionDef, found: dict[str, list[Row]]) -> bool:
    """Add what `method` stores on its first argument to `found`; return whether it may store what is not seen."""
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments or any(dotted(d) == "staticmethod" for d in method.decorator_list):
        return False
    owner = arguments[0].arg
    notes = {a.arg: text(a.annotation) for a in [*arguments, *method.args.kwonlyargs] if a.annotation is not None}
    is_open = False
    for target, value, note in _targets(method.body):
        if isinstance(target, ast.Attribute) and dotted(target.value) == owner:
            found.setdefault(target.attr, []).append(_stored(target, value, note, notes))
        elif isinstance(target, ast.Call):
            name = _set_by(target, owner)
            if name == "*":
                is_open = True
            elif name:
                found.setdefault(name, []).append([Bind.VALUE.value, target.lineno, When.ALWAYS.value])
    return is_open


def _stored(target: ast.Attribute, value: ast.expr | None, note: str, notes: Mapping[str, str]) -> Row:
    if note:
        return [Bind.ANNOTATION.value, target.lineno, When.ALWAYS.value, "", "", note]
    if isinstance(value, ast.Name) and notes.get(value.id):
        return [Bind.ANNOTATION.value, target.lineno, When.ALWAYS.value, "", "", notes[value.id]]
    if isinstance(value, ast.Call) and (name := dotted(value.func)):
        return [Bind.CALL.value, target.lineno, When.ALWAYS.value, name]
    return [Bind.VALUE.value, target.lineno, When.ALWAYS.value]


def _set_by(call: ast.Call, owner: str) -> str:
    """Return the attribute that a call sets on `owner`: its name, "*" for one that is not seen, "" for none."""
    name = dotted(call.func)
    if name in ("setattr", "object.__setattr__", "super.__setattr__") and len(call.args) >= 2:
        if dotted(call.args[0]) != owner:
            return ""
        key = call.args[1]
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "*"
    if name in (f"{owner}.__dict__.update", f"{owner}.__dict__.setdefault", f"{owner}.__setattr__"):
        return "*"
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        inner = call.func.value
        if dotted(inner.func) == "vars" and call.func.attr == "update":
            return "*"
    return ""


def _targets(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr | None, str]]:
    """Yield every target of a store in a body, with its value and annotation; calls that may store, as targets."""
    for node in body:
        match node:
            case ast.Assign():
                for target in node.targets:
                    yield from _unpacked(target, node.value)
            case ast.AnnAssign():
                yield node.target, node.value, text(node.annotation)
            case ast.AugAssign():
                yield node.target, None, ""
            case ast.For() | ast.AsyncFor():
                yield from _unpacked(node.target, None)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        yield from _unpacked(item.optional_vars, None)
            case ast.Expr(value=ast.Call() as call):
                yield call, None, ""
        for part in ("body", "orelse", "finalbody"):
            yield from _targets(getattr(node, part, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _targets(handler.body)
        for case in getattr(node, "cases", ()):
            yield from _targets(case.body)


def _unpacked(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None, str]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for at, inner in enumerate(target.elts):
            yield from _unpacked(inner, value.elts[at] if same else None)  # type: ignore[union-attr]
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value, None)
    elif isinstance(target, ast.Subscript) and dotted(target.value).endswith(".__dict__"):
        owner = target.value
        assert isinstance(owner, ast.Attribute)
        yield ast.Call(func=ast.Attribute(owner, "update"), args=[], keywords=[], lineno=target.lineno), None, ""
    else:
        yield target, value, ""
