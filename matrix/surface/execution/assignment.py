"""Assignment targets: names, tuples, attributes of `self`, and attributes of the target's modules and classes."""

from __future__ import annotations

import ast

from matrix.finding import Kind
from matrix.surface.answer import Presence, Ref
from matrix.surface.execution import engine
from matrix.surface.execution.gates import joined
from matrix.surface.execution.run import Run
from matrix.surface.execution.values import (
    UNKNOWN,
    ClassValue,
    DictValue,
    Env,
    ExternalValue,
    InstanceValue,
    ModuleValue,
    RefValue,
    SelfValue,
    Value,
)


def bind(run: Run, target: ast.expr, value: Value, env: Env) -> None:
    """Bind a value to an assignment target; setting what the target package lacks is reported."""
    if type(target) is ast.Name:
        env[0][target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        items = value if isinstance(value, tuple) and len(value) == len(target.elts) else (UNKNOWN,) * len(target.elts)
        for element, item in zip(target.elts, items, strict=True):
            bind(run, element, item, env)
    elif isinstance(target, ast.Starred):
        bind(run, target.value, UNKNOWN, env)
    elif isinstance(target, ast.Attribute):
        set_attribute(run, run.evaluate(target.value, env), target.attr, value, target)
    elif isinstance(target, ast.Subscript):
        _set_item(run, target, value, env)


def set_attribute(run: Run, owner: Value, name: str, value: Value, node: ast.AST) -> None:
    """Set `owner.name`: on an object of the subject it is remembered, on the target's it is a patch."""
    if isinstance(owner, SelfValue | ClassValue):
        attributes = owner.cls.attributes if isinstance(owner, SelfValue) else owner.body
        known = attributes.get(name, value)
        attributes[name] = known if known is value else joined(known, value)
        return
    if isinstance(owner, ModuleValue) and run.world.covers(owner.name):
        if run.world.lookup(owner.name, name).presence is Presence.MISSING:
            _dead_patch(run, f"{owner.name}.{name}", node, None)
        return
    ref = owner.ref if isinstance(owner, RefValue | InstanceValue) else None
    if ref is None or ref.kind != "class":
        return
    instance = isinstance(owner, InstanceValue)
    if run.world.attribute(ref, name, instance=instance).presence is Presence.MISSING and not instance:
        _dead_patch(run, f"{ref.dotted}.{name}", node, ref)


def _dead_patch(run: Run, symbol: str, node: ast.AST, ref: Ref | None) -> None:
    """Report a patch of something that is not there: it raises nothing and has no effect."""
    private = "." in symbol and symbol.rpartition(".")[2].startswith("_verl")
    run.report(Kind.PATCH_TARGET_MISSING, symbol, node, "", certain=not private, ref=ref)


def _set_item(run: Run, target: ast.Subscript, value: Value, env: Env) -> None:
    owner = run.evaluate(target.value, env)
    key = run.evaluate(target.slice, env)
    if isinstance(owner, DictValue):
        if isinstance(key, str):
            owner.put(key, value, target, run.innermost_optional())
        else:
            owner.complete = False
    elif isinstance(owner, ExternalValue) and owner.dotted == "os.environ" and isinstance(key, str):
        engine.check_environment(run, key, target)
