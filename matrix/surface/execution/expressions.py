"""Expressions: the abstract value of each kind."""

from __future__ import annotations

import ast
import builtins
from typing import Final

from matrix.surface.execution import gates
from matrix.surface.execution.assignment import bind
from matrix.surface.execution.calls import call
from matrix.surface.execution.members import member
from matrix.surface.execution.run import Evaluator, Run
from matrix.surface.execution.state import Guard
from matrix.surface.execution.syntax import Condition
from matrix.surface.execution.values import (
    UNKNOWN,
    BuiltinValue,
    ClassValue,
    DictItemsValue,
    DictValue,
    Env,
    FunctionValue,
    ListValue,
    RefValue,
    Value,
    VersionText,
    is_constant,
)

_BUILTINS: Final = {name: BuiltinValue(name) for name in dir(builtins)}
_UNROLLED: Final = 32


def constant(run: Run, node: ast.expr, env: Env) -> Value:
    """Return a literal; a dotted string that names a module of the subject counts as a reference to it."""
    assert isinstance(node, ast.Constant)
    value = node.value
    if type(value) is str and value.startswith("verl.") and not run.quiet:
        run.refer(value)
    return value


def name(run: Run, node: ast.expr, env: Env) -> Value:
    """Return what a name is bound to."""
    key = node.id  # type: ignore[attr-defined]  # hot path: the table guarantees the type
    for names in env:
        if key in names:
            value = names[key]
            if type(value) is FunctionValue or type(value) is ClassValue:
                run.touch(value)
            return value
    return _BUILTINS.get(key, UNKNOWN)


def attribute(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `owner.name`; what the target lacks is reported."""
    assert isinstance(node, ast.Attribute)
    owner = run.evaluate(node.value, env)
    if owner is UNKNOWN or owner is None:
        return UNKNOWN
    return member(run, owner, node.attr, node)


# -------------------------------------------------------------------------------------------------- composed
def sequence(run: Run, node: ast.expr, env: Env) -> Value:
    """Return a tuple for a tuple, list or set display; starred parts make it unknown."""
    assert isinstance(node, ast.Tuple | ast.List | ast.Set)
    items: list[Value] = []
    known = True
    for element in node.elts:
        value = run.evaluate(element, env)
        if isinstance(element, ast.Starred):
            known = known and isinstance(value, tuple)
            items.extend(value if isinstance(value, tuple) else ())
        else:
            items.append(value)
    if not known:
        return UNKNOWN
    return tuple(items) if isinstance(node, ast.Tuple) else ListValue(items)


def starred(run: Run, node: ast.expr, env: Env) -> Value:
    """Return the value of `*value`."""
    assert isinstance(node, ast.Starred)
    return run.evaluate(node.value, env)


def mapping(run: Run, node: ast.expr, env: Env) -> Value:
    """Return a dict whose constant string keys are known."""
    assert isinstance(node, ast.Dict)
    made = DictValue()
    for key, item in zip(node.keys, node.values, strict=True):
        value = run.evaluate(item, env)
        if key is None:
            if isinstance(value, DictValue):
                made.absorb(value)
            else:
                made.complete = False
            continue
        known = run.evaluate(key, env)
        if isinstance(known, str):
            made.items[str(known)] = value
            made.nodes[str(known)] = key
        else:
            made.complete = False
    return made


def logical(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `and`/`or`; what follows an undecided `hasattr(x, "y")` may use `x.y`."""
    assert isinstance(node, ast.BoolOp)
    conjunction = isinstance(node.op, ast.And)
    saved = run.known_attributes
    depth = len(run.guards)
    result: Value = conjunction
    try:
        for index, part in enumerate(node.values):
            value = run.evaluate(part, env)
            held = gates.truth(value)
            if held is not None and held is not conjunction:
                # A definite end is the result only when nothing before it was unknown or it decides anyway.
                return value if isinstance(value, bool) else held
            if held is None:
                result = UNKNOWN
                if index + 1 < len(node.values):
                    condition = run.subject.condition(part)
                    if conjunction and condition.hasattrs:
                        run.known_attributes = run.known_attributes | set(condition.hasattrs)
                    doubtful = run.at_import or condition.environmental
                    run.push(Guard(condition, taken=conjunction, decided=False, doubtful=doubtful))
            elif result is not UNKNOWN:
                result = value if index == len(node.values) - 1 else result
        return result
    finally:
        run.known_attributes = saved
        run.unwind(depth)


def unary(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `not x` and `-x` of what is known."""
    assert isinstance(node, ast.UnaryOp)
    value = run.evaluate(node.operand, env)
    if isinstance(node.op, ast.Not):
        held = gates.truth(value)
        return UNKNOWN if held is None else not held
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    return UNKNOWN


def choice(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `a if test else b`."""
    assert isinstance(node, ast.IfExp)
    held = gates.truth(run.evaluate(node.test, env))
    if held is not None:
        return run.evaluate(node.body if held else node.orelse, env)
    condition = run.subject.condition(node.test)
    doubtful = run.at_import or condition.environmental
    results = []
    saved = run.known_attributes
    for taken, part in ((True, node.body), (False, node.orelse)):
        depth = len(run.guards)
        run.push(Guard(condition, taken, decided=False, doubtful=doubtful))
        run.known_attributes = saved | set(condition.hasattrs) if taken else saved
        try:
            results.append(run.evaluate(part, env))
        finally:
            run.unwind(depth)
            run.known_attributes = saved
    return gates.joined(results[0], results[1])


def comprehension(run: Run, node: ast.expr, env: Env) -> Value:
    """Return a comprehension: item by item over a short known sequence, else once with nothing known."""
    assert isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
    first = node.generators[0]
    iterated = run.evaluate(first.iter, env)
    if len(node.generators) == 1 and not isinstance(node, ast.DictComp):
        unrolled = _unroll(run, first, node.elt, iterated, env)
        if unrolled is not None:
            return unrolled
    local: dict[str, Value] = {}
    inner = (local, *env)
    for generator in node.generators:
        if generator is not first:
            run.evaluate(generator.iter, inner)
        bind(run, generator.target, UNKNOWN, inner)
        for test in generator.ifs:
            run.evaluate(test, inner)
    if isinstance(node, ast.DictComp):
        run.evaluate(node.key, inner)
        run.evaluate(node.value, inner)
        return DictValue(complete=False) if not isinstance(iterated, DictItemsValue) else _filtered(iterated)
    run.evaluate(node.elt, inner)
    return UNKNOWN


def _filtered(iterated: DictItemsValue) -> DictValue:
    """Return the dict that `{k: v for k, v in d.items() if …}` makes: the keys of `d`, or fewer."""
    made = DictValue(complete=iterated.owner.complete)
    made.absorb(iterated.owner)
    return made


def _unroll(run: Run, generator: ast.comprehension, element: ast.expr, iterated: Value, env: Env) -> Value | None:
    if not isinstance(iterated, tuple) or len(iterated) > _UNROLLED or not is_constant(iterated):
        return None
    results: list[Value] = []
    for item in iterated:
        inner: Env = ({}, *env)
        bind(run, generator.target, item, inner)
        tests = [gates.truth(run.evaluate(test, inner)) for test in generator.ifs]
        if None in tests:
            return None
        if all(tests):
            results.append(run.evaluate(element, inner))
    return tuple(results)


def named(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `(name := value)`, binding the name."""
    assert isinstance(node, ast.NamedExpr)
    value = run.evaluate(node.value, env)
    bind(run, node.target, value, env)
    return value


def awaited(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `await value`: the calls of coroutines already give what they return."""
    assert isinstance(node, ast.Await)
    return run.evaluate(node.value, env)


def binary(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `a + b` of strings and tuples, `a | b` of dicts; nothing else is followed."""
    assert isinstance(node, ast.BinOp)
    left, right = run.evaluate(node.left, env), run.evaluate(node.right, env)
    if isinstance(node.op, ast.Add):
        if isinstance(left, str) and isinstance(right, str):
            return str(left) + str(right)
        if isinstance(left, tuple) and isinstance(right, tuple):
            return left + right
    if isinstance(node.op, ast.BitOr) and isinstance(left, DictValue) and isinstance(right, DictValue):
        made = DictValue(complete=left.complete)
        made.absorb(left)
        made.absorb(right)
        return made
    return UNKNOWN


def item(run: Run, node: ast.expr, env: Env) -> Value:
    """Return `owner[index]` of a known tuple, text or dict."""
    assert isinstance(node, ast.Subscript)
    owner, index = run.evaluate(node.value, env), run.evaluate(node.slice, env)
    if isinstance(owner, VersionText):
        owner = run.text_of(owner)
    if isinstance(owner, tuple | str) and isinstance(index, int | slice):
        try:
            return owner[index]
        except IndexError:
            return UNKNOWN
    if isinstance(owner, DictValue) and isinstance(index, str):
        return owner.items.get(index, UNKNOWN)
    if isinstance(owner, DictValue) and not run.quiet:
        _touch_one_of(run, owner, node.slice)
    return owner if isinstance(owner, RefValue) and owner.ref.kind == "class" else UNKNOWN


def _touch_one_of(run: Run, owner: DictValue, index: ast.expr) -> None:
    """Note that the code refers to one of a dict's functions or classes: to each under the condition of its key."""
    for key, value in owner.items.items():
        if isinstance(value, FunctionValue | ClassValue):
            test = ast.Compare(index, [ast.Eq()], [ast.Constant(key)])
            depth = len(run.guards)
            run.push(Guard(Condition(test), taken=True, decided=False))
            run.touch(value)
            run.unwind(depth)


def part(run: Run, node: ast.expr, env: Env) -> Value:
    """Return the slice `a:b` where both ends are known."""
    assert isinstance(node, ast.Slice)
    ends = [run.evaluate(end, env) if end is not None else None for end in (node.lower, node.upper, node.step)]
    known = all(end is None or isinstance(end, int) for end in ends)
    return slice(*ends) if known else UNKNOWN


def text(run: Run, node: ast.expr, env: Env) -> Value:
    """Return an f-string whose parts are all known."""
    assert isinstance(node, ast.JoinedStr)
    parts: list[str] = []
    known = True
    for piece in node.values:
        value = run.evaluate(piece.value if isinstance(piece, ast.FormattedValue) else piece, env)
        plain = isinstance(value, str | int) and (
            not isinstance(piece, ast.FormattedValue) or piece.format_spec is None
        )
        known = known and plain
        parts.append(str(value) if plain else "")
    return "".join(parts) if known else UNKNOWN


def deferred(run: Run, node: ast.expr, env: Env) -> Value:
    """Execute a lambda's body with nothing known of its caller; its own value is unknown."""
    assert isinstance(node, ast.Lambda)
    if run.quiet:
        return UNKNOWN
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    local: dict[str, Value] = {argument.arg: UNKNOWN for argument in every if argument is not None}
    saved = run.frames, run.at_import
    run.frames, run.at_import = [], False
    try:
        run.evaluate(node.body, (local, *env))
    finally:
        run.frames, run.at_import = saved
    return UNKNOWN


def other(run: Run, node: ast.expr, env: Env) -> Value:
    """Evaluate the parts of an expression of which nothing else is known."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            run.evaluate(child, env)
    return UNKNOWN


EVALUATORS: Final[dict[type[ast.AST], Evaluator]] = {
    ast.Constant: constant,
    ast.Name: name,
    ast.Attribute: attribute,
    ast.Call: call,
    ast.Tuple: sequence,
    ast.List: sequence,
    ast.Set: sequence,
    ast.Starred: starred,
    ast.Dict: mapping,
    ast.BoolOp: logical,
    ast.UnaryOp: unary,
    ast.Compare: gates.compare,
    ast.IfExp: choice,
    ast.Lambda: deferred,
    ast.ListComp: comprehension,
    ast.SetComp: comprehension,
    ast.GeneratorExp: comprehension,
    ast.DictComp: comprehension,
    ast.NamedExpr: named,
    ast.Await: awaited,
    ast.BinOp: binary,
    ast.Subscript: item,
    ast.Slice: part,
    ast.JoinedStr: text,
    ast.FormattedValue: other,
    ast.Yield: other,
    ast.YieldFrom: other,
}
"""The rule for each kind of expression."""
