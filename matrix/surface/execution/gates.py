"""Gates: conditions over versions and over what is installed, and what follows for the branches behind them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from matrix.finding import Kind
from matrix.surface.answer import Presence
from matrix.surface.execution.questions import OPERATORS
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Flow, Guard, Jump, Raised, Returned, version_mark
from matrix.surface.execution.syntax import Condition
from matrix.surface.execution.values import (
    STRUCTURED,
    UNKNOWN,
    BuiltinValue,
    ClassValue,
    DictValue,
    Env,
    ExternalValue,
    FunctionValue,
    ListValue,
    ModuleValue,
    Names,
    RefValue,
    SelfValue,
    SignatureValue,
    TypeCheckingValue,
    Value,
    VersionText,
    VersionValue,
    is_constant,
)

_MIRRORED: Final[Mapping[str, str]] = {"Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE"}
_THINGS: Final = (ModuleValue, FunctionValue, ClassValue, RefValue, BuiltinValue, SelfValue, VersionText, VersionValue)


def truth(value: Value) -> bool | None:
    """Return whether a value is true, None when that is not known."""
    if isinstance(value, TypeCheckingValue):
        return False
    if isinstance(value, ModuleValue | FunctionValue | ClassValue | VersionValue | VersionText):
        return True
    if isinstance(value, RefValue):
        return True if value.ref.kind in ("class", "function", "method", "module") else None
    if isinstance(value, DictValue | ListValue):
        # Code elsewhere may have added to it, hardly ever emptied it.
        return True if (value.items if isinstance(value, DictValue) else value) else None
    if value is UNKNOWN or isinstance(value, STRUCTURED):
        return None
    return bool(value)


def branch(run: Run, node: ast.If, env: Env) -> Flow:
    """Execute an `if`: the branch that runs, or both and their join when it cannot be decided."""
    reads = run.version_reads
    held = truth(run.evaluate(node.test, env))
    condition = run.subject.condition(node.test)
    root = gated_root(run, condition, reads)
    if held is not None:
        body = node.body if held else node.orelse
        if not body:
            # What follows is reached because the condition failed; a refusal there must still know of it.
            return None
        depth = len(run.guards)
        run.push(Guard(condition, held, decided=True, root=root))
        try:
            return run.execute(body, env)
        finally:
            run.unwind(depth)
    if run.quiet:
        # Followed for its value only: beyond an undecided condition there is none.
        return Returned(UNKNOWN)
    return _both(run, node, env, root=root)


def gated_root(run: Run, condition: Condition, reads: int) -> str:
    """Return the package on whose version a condition depends, "" for none.

    `reads` is `run.version_reads` before the condition was evaluated: a comparison that read a version since tells.
    """
    if run.version_reads > reads:
        return run.version_root
    if condition.versioned:
        return next((root for root in run.versions if root in condition.text), "")
    return ""


def _both(run: Run, node: ast.If, env: Env, *, root: str) -> Flow:
    condition = run.subject.condition(node.test)
    doubtful = run.at_import or condition.environmental or bool(root)
    known = run.known_attributes
    run.known_attributes = known | set(condition.hasattrs)
    first = Guard(condition, taken=True, decided=False, root=root, doubtful=doubtful)
    before = dict(env[0])
    flow = speculate(run, node.body, env, first)
    run.known_attributes = known
    after = dict(env[0])
    restore(env[0], before)
    second = Guard(condition, taken=False, decided=False, root=root, doubtful=doubtful)
    other = speculate(run, node.orelse, env, second)
    if flow is not None and other is not None:
        return _merge(flow, other)
    for ended in (flow, other):
        if isinstance(ended, Returned):
            run.returned.append(ended.value)
    if flow is not None:
        # Only the other branch goes on, so what follows depends on the condition.
        if flow is not Jump.REFUSED or doubtful:
            run.push(second)
        return None
    if other is not None:
        restore(env[0], after)
        if other is not Jump.REFUSED or doubtful:
            run.push(first)
        return None
    join(env[0], after)
    return None


def speculate(run: Run, body: list[ast.stmt], env: Env, guard: Guard) -> Flow:
    """Execute a branch that may or may not run; what it raises ends the branch and is noted, not believed."""
    if not body:
        return None
    depth = len(run.guards)
    run.push(guard)
    try:
        return run.execute(body, env)
    except Raised as raised:
        if raised.draft is not None and not run.quiet:
            frame = next((frame for frame in reversed(run.frames)), None)
            raised.draft.handler = frame.node if frame is not None else None
            run.handled.append(raised.draft)
        return Jump.ENDED if raised.draft is not None else refused(run, raised.exception)
    finally:
        run.unwind(depth)


def refused(run: Run, exception: str) -> Jump:
    """Return how a block ends that raises on purpose: for good, unless a handler of the same function goes on."""
    return Jump.ENDED if run.is_caught(exception) else Jump.REFUSED


def _merge(first: Flow, second: Flow) -> Flow:
    """Return how a block ended of which both branches ended."""
    if isinstance(first, Returned) and isinstance(second, Returned):
        return Returned(joined(first.value, second.value))
    for quitting in (Jump.REFUSED, Jump.ENDED):
        if quitting in (first, second):
            return second if first is quitting else first
    return second if isinstance(first, Returned) else first


def restore(names: Names, state: Names) -> None:
    """Give a namespace the content it had, keeping its identity (functions close over it)."""
    names.clear()
    names.update(state)


def join(names: Names, other: Names) -> None:
    """Make a namespace hold what is known whichever of two branches ran."""
    for name, value in other.items():
        if name not in names:
            names[name] = value
        elif names[name] is not value:
            names[name] = joined(names[name], value)


def joined(first: Value, second: Value) -> Value:
    """Return what is known of a value that is one of two.

    A definition or version that only one branch knows survives the other's not knowing: the unknown is mostly the same
    thing seen less well.
    """
    if first is second:
        return first
    for known, other in ((first, second), (second, first)):
        if other is UNKNOWN:
            keep = isinstance(known, STRUCTURED)
            return known if keep else UNKNOWN
    if isinstance(first, DictValue) and isinstance(second, DictValue):
        both = DictValue(dict(first.items), complete=first.complete and second.complete)
        both.nodes.update(first.nodes)
        both.guards.update(first.guards)
        both.absorb(second)
        return both
    return first if type(first) is type(second) and first == second else UNKNOWN


# ------------------------------------------------------------------------------------------------------- comparing
def compare(run: Run, node: ast.expr, env: Env) -> Value:
    """Return the value of a comparison, recording one of versions as text where the text misleads."""
    assert isinstance(node, ast.Compare)
    left = run.evaluate(node.left, env)
    result: Value = True
    for operation, operand in zip(node.ops, node.comparators, strict=True):
        right = run.evaluate(operand, env)
        outcome = _compare(run, node, left, type(operation), right)
        if outcome is None:
            result = UNKNOWN
        elif not outcome:
            return False
        left = right
    return result


def _compare(run: Run, node: ast.Compare, left: Value, operation: type[ast.cmpop], right: Value) -> bool | None:
    _note_version(run, left, right)
    if operation in (ast.Is, ast.IsNot):
        same = _identical(left, right)
        return same if same is None or operation is ast.Is else not same
    if operation in (ast.In, ast.NotIn):
        inside = _contains(run, left, right)
        return inside if inside is None or operation is ast.In else not inside
    name = operation.__name__
    if isinstance(left, VersionValue) and isinstance(right, VersionValue):
        return _compare_versions(run, left, name, right)
    if isinstance(left, VersionText) or isinstance(right, VersionText):
        return _compare_text(run, node, left, name, right)
    if not _comparable(left) or not _comparable(right):
        return None
    try:
        return bool(OPERATORS[name](left, right))
    except TypeError:
        return None


def _comparable(value: Value) -> bool:
    return is_constant(value) and not isinstance(value, TypeCheckingValue)


def _compare_versions(run: Run, left: VersionValue, name: str, right: VersionValue) -> bool | None:
    if left.version is None and right.version is None:
        return OPERATORS[name](0, 0) if left.root == right.root else None
    if left.version is None:
        return run.world.compare(left.root, name, str(right.version))
    if right.version is None:
        return run.world.compare(right.root, _MIRRORED.get(name, name), str(left.version))
    return OPERATORS[name](left.version, right.version)


def _compare_text(run: Run, node: ast.Compare, left: Value, name: str, right: Value) -> bool | None:
    """Return what comparing a version as text says; where comparing it as a version says otherwise, record that."""
    if isinstance(left, VersionText) and isinstance(right, str):
        version, other, operator = left, right, name
    elif isinstance(right, VersionText) and isinstance(left, str):
        version, other, operator = right, left, _MIRRORED.get(name, name)
    else:
        return None
    if version.text is not None:
        return OPERATORS[operator](version.text, other)
    said, wrong = run.world.compare_text(version.root, operator, other)
    if wrong:
        installed = version_mark(version.root)
        detail = (
            f"`{run.subject.text(node)}` compares versions as text: it is {said} for {version.root} {installed}, "
            f"as versions it would be {not said}"
        )
        symbol = f"{version.root}=={installed}"
        run.report(Kind.GATE_WRONG, symbol, node, "", target=version.root, detail=detail)
    return said


def _note_version(run: Run, left: Value, right: Value) -> None:
    for value in (left, right):
        if isinstance(value, VersionText) or (isinstance(value, VersionValue) and value.root):
            run.version_reads += 1
            run.version_root = value.root


def _identical(left: Value, right: Value) -> bool | None:
    if right is None or left is None:
        other = left if right is None else right
        if other is None:
            return True
        return (
            False
            if isinstance(other, _THINGS) or (other is not UNKNOWN and not isinstance(other, STRUCTURED))
            else None
        )
    if isinstance(left, bool) and isinstance(right, bool):
        return left is right
    return None


def _contains(run: Run, left: Value, right: Value) -> bool | None:
    if isinstance(right, ExternalValue) and right.dotted == "os.environ":
        return False
    if isinstance(right, SignatureValue) and isinstance(left, str):
        return run.world.parameter(right.ref, left)
    if isinstance(right, DictValue) and isinstance(left, str):
        return True if left in right.items else (False if right.complete else None)
    if isinstance(left, VersionValue | VersionText) and isinstance(right, tuple):
        return _among(run, left, right)
    if left is UNKNOWN or isinstance(left, STRUCTURED) or not is_constant(right):
        return None
    if isinstance(right, tuple):
        return left in right
    return left in right if isinstance(left, str) and isinstance(right, str) else None


def _among(run: Run, version: VersionValue | VersionText, items: tuple[Value, ...]) -> bool | None:
    """Return whether a version is one of some versions or texts."""
    same: list[bool | None] = []
    for item in items:
        if isinstance(version, VersionValue) and isinstance(item, VersionValue):
            same.append(_compare_versions(run, version, "Eq", item))
        elif isinstance(version, VersionText) and isinstance(item, str):
            text = version.text
            same.append(text == item if text is not None else run.world.compare_text(version.root, "Eq", item)[0])
        else:
            same.append(None)
    return True if True in same else None if None in same else False


def presence_truth(presence: Presence, *, exact: bool = True) -> Value:
    """Return what `hasattr` gives for an answer's presence."""
    if presence is Presence.PRESENT:
        return True
    return False if presence is Presence.MISSING and exact else UNKNOWN
