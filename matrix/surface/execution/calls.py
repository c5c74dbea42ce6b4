"""Calls: whether the target can be called so, and what the call gives."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from matrix.surface.execution import engine
from matrix.surface.execution.imports import from_answer
from matrix.surface.execution.known import known_call
from matrix.surface.execution.questions import Shape
from matrix.surface.execution.run import MAX_DEPTH, Run
from matrix.surface.execution.state import Guard, Raised, Returned
from matrix.surface.execution.values import (
    UNKNOWN,
    BuiltinValue,
    ClassValue,
    DictValue,
    Env,
    ExternalValue,
    FunctionValue,
    InstanceValue,
    MethodValue,
    ModuleValue,
    Names,
    PartialValue,
    RefValue,
    SelfValue,
    Value,
    VersionText,
    VersionValue,
)

_UNCHANGING = (
    str,
    int,
    float,
    type(None),
    RefValue,
    ModuleValue,
    ExternalValue,
    BuiltinValue,
    FunctionValue,
    VersionText,
    VersionValue,
)


@dataclass(slots=True)
class Arguments:
    """The arguments of a call: what is given by position and by name, and whether there may be more.

    `guards`: under which condition a keyword is given at all, where it comes from a dict that was filled so.
    """

    positional: list[Value]
    keywords: dict[str, Value]
    more_positional: bool = False
    more_keywords: bool = False
    guards: dict[str, Guard] = field(default_factory=dict)


def call(run: Run, node: ast.expr, env: Env) -> Value:
    """Return the value of a call; one that the target does not accept is reported."""
    assert isinstance(node, ast.Call)
    function = run.evaluate(node.func, env)
    arguments = _arguments(run, node, env)
    if isinstance(function, RefValue):
        return call_target(run, function, arguments, node)
    if isinstance(function, FunctionValue):
        return _call_own(run, function, arguments, node)
    if isinstance(function, ClassValue):
        return _make(run, function, arguments, node)
    if isinstance(function, PartialValue):
        return _call_partial(run, function, arguments, node)
    value = known_call(run, function, node, arguments.positional, arguments.keywords, env)
    if isinstance(function, MethodValue) and isinstance(function.owner, DictValue):
        return _dict_method(run, function.owner, function.name, arguments, value, node)
    return value


def _arguments(run: Run, node: ast.Call, env: Env) -> Arguments:
    made = Arguments([], {})
    for argument in node.args:
        value = run.evaluate(argument, env)
        if isinstance(argument, ast.Starred):
            if isinstance(value, tuple) and not made.more_positional:
                made.positional.extend(value)
            else:
                made.more_positional = True
        else:
            made.positional.append(value)
    for keyword in node.keywords:
        value = run.evaluate(keyword.value, env)
        if keyword.arg is not None:
            made.keywords[keyword.arg] = value
        elif isinstance(value, DictValue):
            made.keywords.update(value.items)
            made.guards.update(value.guards)
            made.more_keywords = made.more_keywords or not value.complete
        else:
            made.more_keywords = True
    return made


# ---------------------------------------------------------------------------------------------------- the target
def call_target(run: Run, function: RefValue, arguments: Arguments, node: ast.Call) -> Value:
    """Check a call of something in the target and return what it gives."""
    value = known_call(run, function, node, arguments.positional, arguments.keywords, ())
    if value is not UNKNOWN:
        return value
    if function.ref.kind not in ("function", "class", "method"):
        return UNKNOWN
    check_call(run, function, arguments, node)
    if function.ref.kind == "class":
        return InstanceValue(function.ref)
    return from_answer(run, run.world.returns(function.ref))


def check_call(run: Run, function: RefValue, arguments: Arguments, node: ast.AST) -> None:
    """Report the keywords, positions and missing arguments that the target does not allow."""
    ref = function.ref
    shape = Shape(
        positional=len(arguments.positional),
        keywords=tuple(arguments.keywords),
        more_positional=arguments.more_positional,
        more_keywords=arguments.more_keywords,
    )
    for found in run.world.misfits(ref, shape, bound=function.bound or ref.kind != "method"):
        guard = next((arguments.guards[key] for key in arguments.guards if found.is_about(key)), None)
        depth = len(run.guards)
        if guard is not None:
            run.push(guard)
        run.report(found.kind, found.symbol, node, "TypeError", certain=found.certain, ref=ref, detail=found.detail)
        run.unwind(depth)


def _call_partial(run: Run, function: PartialValue, arguments: Arguments, node: ast.Call) -> Value:
    inner = function.function
    merged = Arguments(
        [UNKNOWN] * function.positional + arguments.positional,
        {**dict.fromkeys(function.keywords, UNKNOWN), **arguments.keywords},
        arguments.more_positional,
        arguments.more_keywords,
    )
    return call_target(run, inner, merged, node) if isinstance(inner, RefValue) else UNKNOWN


# --------------------------------------------------------------------------------------------------- the subject
def _call_own(run: Run, function: FunctionValue, arguments: Arguments, node: ast.Call) -> Value:
    """Follow a call of one of the subject's functions: for its effects at import time, else for its value."""
    if not run.quiet:
        engine.check_call(run, function, node, arguments.positional, arguments.keywords)
    if not function.plain or run.depth >= MAX_DEPTH or function.owner is not None:
        return UNKNOWN
    fixed = run.profile.calls.get(f"{function.module.name}.{function.node.name}")
    if fixed is not None:
        return fixed
    quiet = not run.at_import or run.quiet > 0
    if isinstance(function.node, ast.AsyncFunctionDef) or (quiet and not run.subject.function(function.node).inlinable):
        return UNKNOWN
    local = _passed(function, arguments)
    key = _memo_key(function, local) if quiet and not run.at_import else None
    if key is None or key not in run.results:
        result = _follow(run, function, local, quiet=quiet)
        if key is not None:
            run.results[key] = result
    else:
        result = run.results[key]
    if not isinstance(result, Raised):
        return result
    if run.is_caught(result.exception):
        raise result
    if result.draft is not None and not quiet:
        run.record(result.draft)
    return UNKNOWN


def _follow(run: Run, function: FunctionValue, local: Names, *, quiet: bool) -> Value:
    """Return what the function returns, or the `Raised` with which it ends."""
    try:
        flow = run.follow(function, local, quiet=quiet)
    except Raised as raised:
        return raised
    except RecursionError:
        return UNKNOWN
    if isinstance(flow, Returned):
        return flow.value
    return None if flow is None else UNKNOWN


def _memo_key(function: FunctionValue, local: Names) -> tuple[object, ...] | None:
    """Return a key under which a followed call's value may be kept, None when an argument can change."""
    key: list[object] = [id(function)]
    for value in local.values():
        if value is not UNKNOWN and not isinstance(value, _UNCHANGING):
            return None
        # `1`, `1.0` and `True` are equal.
        key += (type(value), value)
    return tuple(key)


def _passed(function: FunctionValue, arguments: Arguments) -> Names:
    """Return the parameters of a function as this call sets them."""
    node = function.node.args
    names = [argument.arg for argument in (*node.posonlyargs, *node.args)]
    local: Names = dict.fromkeys(names, UNKNOWN)
    for name, default in zip(reversed(names), reversed(node.defaults), strict=False):
        local[name] = default.value if isinstance(default, ast.Constant) else UNKNOWN
    for argument, value in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        local[argument.arg] = value.value if isinstance(value, ast.Constant) else UNKNOWN
    if arguments.more_positional or arguments.more_keywords:
        local = dict.fromkeys(local, UNKNOWN)
    local.update(zip(names, arguments.positional, strict=False))
    local.update((name, value) for name, value in arguments.keywords.items() if name in local)
    for extra in (node.vararg, node.kwarg):
        if extra is not None:
            local[extra.arg] = UNKNOWN
    return local


def _make(run: Run, cls: ClassValue, arguments: Arguments, node: ast.Call) -> Value:
    """Return an instance of one of the subject's classes; a constructor inherited from the target is checked."""
    for item in cls.lineage():
        for name in ("__init__", "__new__", "__post_init__"):
            made = item.body.get(name)
            if isinstance(made, FunctionValue):
                run.touch(made)
        if "__init__" in item.body or "__new__" in item.body:
            return SelfValue(cls)
    return SelfValue(cls)


def _dict_method(run: Run, owner: DictValue, name: str, arguments: Arguments, value: Value, node: ast.Call) -> Value:
    """Return what a method of a known dict gives, and let it change the dict."""
    guard = run.innermost_optional()
    if name == "update":
        given = arguments.positional[0] if arguments.positional else DictValue()
        changed = given if isinstance(given, DictValue) else DictValue(complete=False)
        changed.items.update(arguments.keywords)
        for key, value in changed.items.items():
            owner.put(key, value, changed.nodes.get(key, node), guard or changed.guards.get(key))
        owner.complete = owner.complete and changed.complete
        return None
    first = arguments.positional[0] if arguments.positional else UNKNOWN
    if name in ("get", "pop", "setdefault") and isinstance(first, str):
        default = arguments.positional[1] if len(arguments.positional) > 1 else None
        found = owner.items.get(first, default if owner.complete else UNKNOWN)
        if name == "pop" and guard is None:
            owner.items.pop(first, None)
        if name == "setdefault" and first not in owner.items:
            owner.items[first] = default
        return found
    if name == "copy":
        made = DictValue(complete=owner.complete)
        made.absorb(owner)
        return made
    return value
