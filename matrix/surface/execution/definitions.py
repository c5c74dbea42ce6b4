"""Definitions: what executing a `def` or a `class` does, and what is known of parameters."""

from __future__ import annotations

import ast

from matrix.surface.execution import overrides
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Flow, Raised
from matrix.surface.execution.syntax import dataclass_fields, last_name
from matrix.surface.execution.values import (
    UNKNOWN,
    ClassValue,
    Env,
    FunctionValue,
    InstanceValue,
    Names,
    RefValue,
    SelfValue,
    Value,
    VersionValue,
)


def define_function(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `def`: decorators, defaults and annotations now, the body later."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert run.current is not None
    for decorator in node.decorator_list:
        run.evaluate(decorator, env)
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            run.evaluate(default, env)
    if not run.current.module.facts.future_annotations:
        for annotation in _annotations(node):
            run.evaluate(annotation, env)
    owner = run.classes[-1] if run.classes and env[0] is run.classes[-1].body else None
    plain = run.subject.function(node).plain
    made = FunctionValue(
        node=node,
        module=run.current,
        env=env if owner is None else env[1:],
        owner=owner,
        scope=".".join((*run.scope, node.name)),
        plain=plain,
        registered=not plain and owner is None,
    )
    env[0][node.name] = made
    if run.quiet:
        return None
    if run.at_import and run.function is None:
        run.current.functions.append(made)
    else:
        _run_nested(run, made)
    return None


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = [argument.annotation for argument in every if argument is not None and argument.annotation is not None]
    return [*found, node.returns] if node.returns is not None else found


def _run_nested(run: Run, function: FunctionValue) -> None:
    """Execute a function defined inside a function, on the spot: what it closes over is known here."""
    saved = run.frames, run.scope, run.at_import
    run.frames, run.scope, run.at_import = [], (*run.scope, function.node.name), False
    depth = len(run.guards)
    try:
        run.execute(function.node.body, (parameters(run, function), *function.env))
    except Raised as raised:
        if raised.draft is not None:
            run.record(raised.draft)
    finally:
        run.unwind(depth)
        run.frames, run.scope, run.at_import = saved


def parameters(run: Run, function: FunctionValue) -> Names:
    """Return the parameters of a function of whose caller nothing is known: what their annotations tell."""
    arguments = function.node.args
    names: Names = {}
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in every:
        value = annotated(run, argument.annotation, function.env)
        root = argument.arg.strip("_").removesuffix("_version").removesuffix("_ver")
        if value is UNKNOWN and root != argument.arg.strip("_") and root in run.versions:
            # A version handed down as an argument: `vllm_version` means the installed one.
            value = VersionValue(None, root)
        names[argument.arg] = value
    static = run.subject.function(function.node).static
    if function.owner is not None and arguments.args and not static:
        names[arguments.args[0].arg] = SelfValue(function.owner)
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            names[extra.arg] = UNKNOWN
    return names


def annotated(run: Run, annotation: ast.expr | None, env: Env) -> Value:
    """Return what an annotation tells of a value: an instance of a target class, or of a subclass of it."""
    node = annotation
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return UNKNOWN
    if isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Optional":
        node = node.slice
    if not isinstance(node, ast.Name | ast.Attribute):
        return UNKNOWN
    run.quiet += 1
    try:
        value = run.evaluate(node, env)
    except Raised:
        return UNKNOWN
    finally:
        run.quiet -= 1
    if isinstance(value, RefValue) and value.ref.kind == "class":
        return InstanceValue(value.ref, exact=False)
    return SelfValue(value) if isinstance(value, ClassValue) else UNKNOWN


def define_class(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute a `class`: bases, keywords, decorators and body; then compare its methods with the bases' ones."""
    assert isinstance(node, ast.ClassDef)
    assert run.current is not None
    for decorator in node.decorator_list:
        run.evaluate(decorator, env)
    bases = tuple(run.evaluate(base, env) for base in node.bases)
    for keyword in node.keywords:
        run.evaluate(keyword.value, env)
    made = ClassValue(node, run.current, bases, registered=bool(node.decorator_list), fields=dataclass_fields(node))
    scope = run.scope
    run.classes.append(made)
    run.scope = (*scope, node.name)
    try:
        run.execute(node.body, (made.body, *env))
    finally:
        run.classes.pop()
        run.scope = scope
    env[0][node.name] = made
    if not run.quiet:
        overrides.check_class(run, made)
    return None
