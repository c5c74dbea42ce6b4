"""Statements: what executing each kind does to the namespaces, and how blocks end."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from matrix.finding import Kind
from matrix.surface.execution import engine, gates
from matrix.surface.execution.assignment import bind
from matrix.surface.execution.definitions import annotated, define_class, define_function
from matrix.surface.execution.imports import import_from, import_statement
from matrix.surface.execution.run import Executor, Run
from matrix.surface.execution.state import Flow, Frame, Guard, Jump, Raised, Returned, catches, version_mark
from matrix.surface.execution.syntax import Condition, case_tests, last_name
from matrix.surface.execution.values import (
    UNKNOWN,
    ClassValue,
    DictItemsValue,
    DictValue,
    Env,
    FunctionValue,
    RefValue,
    SelfValue,
    Value,
)

_UNROLLED: Final = 32


# ------------------------------------------------------------------------------------------------- assignments
def assign(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `a = b = value`."""
    assert isinstance(node, ast.Assign)
    value = run.evaluate(node.value, env)
    for target in node.targets:
        bind(run, target, value, env)
    return None


def assign_annotated(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `a: T = value`; the annotation is evaluated where Python would."""
    assert isinstance(node, ast.AnnAssign)
    assert run.current is not None
    if run.at_import and run.function is None and not run.current.module.facts.future_annotations:
        run.evaluate(node.annotation, env)
    if node.value is None and run.function is None:
        return None
    value = run.evaluate(node.value, env) if node.value is not None else UNKNOWN
    bind(run, node.target, value if value is not UNKNOWN else annotated(run, node.annotation, env), env)
    return None


def assign_augmented(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `a += value`: what results is known for strings and tuples only."""
    assert isinstance(node, ast.AugAssign)
    added = run.evaluate(node.value, env)
    before = run.evaluate(node.target, env) if isinstance(node.target, ast.Name) else UNKNOWN
    value: Value = UNKNOWN
    if isinstance(node.op, ast.Add) and isinstance(before, tuple) and isinstance(added, tuple):
        value = before + added
    if isinstance(node.op, ast.BitOr) and isinstance(before, DictValue) and isinstance(added, DictValue):
        before.absorb(added)
        value = before
    if isinstance(node.target, ast.Name):
        bind(run, node.target, value, env)
    return None


def expression(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute an expression for what it does."""
    assert isinstance(node, ast.Expr)
    if not isinstance(node.value, ast.Constant):
        run.evaluate(node.value, env)
    return None


# -------------------------------------------------------------------------------------------------------- flow
def conditional(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute an `if`."""
    assert isinstance(node, ast.If)
    return gates.branch(run, node, env)


def loop_over(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `for`: once with nothing known of the item, or item by item over known strings and definitions."""
    assert isinstance(node, ast.For | ast.AsyncFor)
    iterated = run.evaluate(node.iter, env)
    items = _telling_items(iterated)
    before = dict(env[0])
    for item in items if items is not None else (UNKNOWN,):
        bind(run, node.target, item, env)
        flow = run.execute(node.body, env)
        if flow is not None and flow is not Jump.LOOP:
            if items is not None and isinstance(flow, Returned) and not run.undecided:
                return flow
            if isinstance(flow, Returned):
                run.returned.append(flow.value)
            break
    gates.join(env[0], before)
    if not run.quiet and isinstance(iterated, DictItemsValue):
        engine.check_flag_loop(run, node, iterated.owner)
    return run.execute(node.orelse, env) if node.orelse else None


def _telling_items(iterated: Value) -> tuple[Value, ...] | None:
    """Return the items of a short known sequence worth going through one by one, else None."""
    if not isinstance(iterated, tuple) or not 0 < len(iterated) <= _UNROLLED:
        return None
    flat = [part for item in iterated for part in (item if isinstance(item, tuple) else (item,))]
    return iterated if any(isinstance(part, str | FunctionValue | RefValue | ClassValue) for part in flat) else None


def loop_while(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `while` once."""
    assert isinstance(node, ast.While)
    run.evaluate(node.test, env)
    before = dict(env[0])
    flow = run.execute(node.body, env)
    gates.join(env[0], before)
    endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
    return flow if endless and isinstance(flow, Returned) else None


def give_back(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `return`."""
    assert isinstance(node, ast.Return)
    return Returned(run.evaluate(node.value, env) if node.value is not None else None)


def jump(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `break` and `continue`."""
    return Jump.LOOP


def choose(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `match`: every case may be the one."""
    assert isinstance(node, ast.Match)
    run.evaluate(node.subject, env)
    for case, test in zip(node.cases, case_tests(node), strict=True):
        guard = Guard(Condition(test), taken=True, decided=False, doubtful=run.at_import)
        before = dict(env[0])
        gates.speculate(run, case.body, env, guard)
        gates.join(env[0], before)
    return None


def insist(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `assert`: one about a version that is sure to fail is a refusal."""
    assert isinstance(node, ast.Assert)
    reads = run.version_reads
    held = gates.truth(run.evaluate(node.test, env))
    if held is False and run.version_reads > reads and not run.undecided:
        guard = Guard(run.subject.condition(node.test), taken=False, decided=True, root=run.version_root)
        run.push(guard)
        _refuse(run, node, "AssertionError")
    return None


def throw(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `raise`."""
    assert isinstance(node, ast.Raise)
    if node.exc is not None:
        run.evaluate(node.exc, env)
    if run.active:
        caught = run.active[-1]
        exception = last_name(node.exc) if node.exc is not None else caught.exception
        draft = caught.draft
        if draft is not None and draft in run.handled:
            run.handled.remove(draft)
            draft.handler = None
            # `raise e` shows the error that was caught.
            draft.shown = run.subject.text(node.exc) if isinstance(node.exc, ast.Call) else ""
            draft.exception = exception or draft.exception
        raise Raised(exception, draft)
    return _refuse(run, node, last_name(node.exc) if node.exc is not None else "")


def _refuse(run: Run, node: ast.Raise | ast.Assert, exception: str) -> Flow:
    """Raise what the code raises on purpose; behind a version gate that is a finding."""
    draft = None
    gate = next((guard for guard in reversed(run.guards) if guard.decided and guard.root), None)
    if gate is not None:
        version = version_mark(gate.root)
        draft = run.draft(Kind.GATE_REFUSES, f"{gate.root}=={version}", node, exception, target=gate.root)
        draft.detail = f"`{gate.text}` holds for {gate.root} {version}: {run.subject.text(node)}"
    if run.undecided:
        if draft is not None and not run.is_caught(exception):
            run.record(draft)
        return gates.refused(run, exception) if draft is None else Jump.ENDED
    raise Raised(exception, draft)


# --------------------------------------------------------------------------------------------------- exceptions
def attempt(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `try`: the body, and the handler that catches what it is sure to raise."""
    assert isinstance(node, ast.Try)
    frame = Frame(node, handled_names(node))
    run.frames.append(frame)
    depth, scope, classes = len(run.guards), run.scope, len(run.classes)
    raised: Raised | None = None
    flow: Flow = None
    try:
        flow = run.execute(node.body, env)
    except Raised as error:
        raised = error
        run.unwind(depth)
        run.scope = scope
        del run.classes[classes:]
    finally:
        run.frames.pop()
    try:
        if raised is not None:
            flow = _handle(run, node, raised, env)
        elif flow is None:
            flow = run.execute(node.orelse, env)
    finally:
        ended = run.execute(node.finalbody, env) if node.finalbody else None
    return ended if ended is not None else flow


def handled_names(node: ast.Try) -> frozenset[str] | None:
    """Return the names of the exceptions that a `try` handles, None for a bare `except`."""
    names: set[str] = set()
    for handler in node.handlers:
        caught = handler_names(handler)
        if caught is None:
            return None
        names |= caught
    return frozenset(names)


def handler_names(handler: ast.ExceptHandler) -> frozenset[str] | None:
    """Return the names that one handler catches, None for a bare `except`."""
    if handler.type is None:
        return None
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return frozenset(last_name(item) for item in types)


def _handle(run: Run, node: ast.Try, raised: Raised, env: Env) -> Flow:
    handler = next((item for item in node.handlers if catches(handler_names(item), raised.exception)), None)
    if handler is None:
        raise raised
    if raised.draft is not None and not run.quiet:
        raised.draft.handler = handler
        run.handled.append(raised.draft)
    if handler.name:
        env[0][handler.name] = UNKNOWN
    run.active.append(raised)
    try:
        return run.execute(handler.body, env)
    finally:
        run.active.pop()


def with_block(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `with`; `contextlib.suppress` is a `try` that passes."""
    assert isinstance(node, ast.With | ast.AsyncWith)
    caught: frozenset[str] | None = frozenset()
    for item in node.items:
        value = run.evaluate(item.context_expr, env)
        call = item.context_expr
        if isinstance(call, ast.Call) and last_name(call) == "suppress":
            caught = frozenset(last_name(argument) for argument in call.args)
        if item.optional_vars is not None:
            entered = value if isinstance(value, SelfValue) else UNKNOWN
            bind(run, item.optional_vars, entered, env)
    if not caught:
        return run.execute(node.body, env)
    run.frames.append(Frame(node, caught))
    depth = len(run.guards)
    try:
        return run.execute(node.body, env)
    except Raised as raised:
        run.unwind(depth)
        if not catches(caught, raised.exception):
            raise
        if raised.draft is not None and not run.quiet:
            raised.draft.handler = node
            run.handled.append(raised.draft)
        return None
    finally:
        run.frames.pop()


def delete(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `del name`."""
    assert isinstance(node, ast.Delete)
    for target in node.targets:
        if isinstance(target, ast.Name):
            env[0].pop(target.id, None)
    return None


_Rule = Callable[[Run, ast.stmt, Env], Flow]

EXECUTORS: Final[dict[type[ast.AST], Executor]] = {
    ast.Import: import_statement,
    ast.ImportFrom: import_from,
    ast.FunctionDef: define_function,
    ast.AsyncFunctionDef: define_function,
    ast.ClassDef: define_class,
    ast.Assign: assign,
    ast.AnnAssign: assign_annotated,
    ast.AugAssign: assign_augmented,
    ast.Expr: expression,
    ast.If: conditional,
    ast.For: loop_over,
    ast.AsyncFor: loop_over,
    ast.While: loop_while,
    ast.Return: give_back,
    ast.Break: jump,
    ast.Continue: jump,
    ast.Match: choose,
    ast.Assert: insist,
    ast.Raise: throw,
    ast.Try: attempt,
    ast.With: with_block,
    ast.AsyncWith: with_block,
    ast.Delete: delete,
}
"""The rule for each kind of statement; the kinds left out (`pass`, `global`, `nonlocal`) do nothing here."""
