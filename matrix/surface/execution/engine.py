"""Options that verl sets on engines: command-line flags built from a dict, and environment variables."""

from __future__ import annotations

import ast

from matrix.finding import Kind
from matrix.surface.answer import Presence
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Guard
from matrix.surface.execution.syntax import Condition, makes_flags
from matrix.surface.execution.values import UNKNOWN, DictValue, FunctionValue, ModuleValue, RefValue, Value


def check_environment(run: Run, name: str, node: ast.AST) -> None:
    """Report a variable set for the engine that this release of the engine does not read."""
    for prefix, module in run.profile.environment.items():
        if not name.startswith(prefix) or not run.world.covers(module):
            continue
        if run.world.lookup(module, name).presence is Presence.MISSING:
            run.report(
                Kind.ENGINE_KEY_UNKNOWN,
                f"{module}.{name}",
                node,
                "",
                detail=f"the environment variable {name} is set, and {module} does not know it",
            )


def check_call(
    run: Run, function: FunctionValue, node: ast.Call, args: list[Value], keywords: dict[str, Value]
) -> None:
    """Check the dicts handed to a function of the subject that turns their keys into flags of the engine."""
    names = run.subject.function(function.node).flags
    if not names:
        return
    arguments = function.node.args
    for name, value in zip([arg.arg for arg in arguments.args], args, strict=False):
        if name in names and isinstance(value, DictValue):
            check_flags(run, value, node)
    for name, value in keywords.items():
        if name in names and isinstance(value, DictValue):
            check_flags(run, value, node)


def check_flag_loop(run: Run, node: ast.For | ast.AsyncFor, options: DictValue) -> None:
    """Check the dict that a loop turns into flags on the spot (verl 0.6)."""
    if isinstance(node, ast.For) and makes_flags(node):
        check_flags(run, options, node)


def check_flags(run: Run, options: DictValue, node: ast.AST) -> None:
    """Report the keys of `options` that the engine's command line does not take."""
    if not _speaks_to_engine(run):
        return
    for key, value in options.items.items():
        # verl leaves out what is None, and an unknown value may be.
        if value is None or not key.isidentifier() or run.world.option(key) is not False:
            continue
        guard = options.guards.get(key)
        if guard is None and value is UNKNOWN:
            guard = Guard(Condition(ast.parse(f"{key} is not None", mode="eval").body), taken=True, decided=False)
        where = options.nodes.get(key, node)
        depth = len(run.guards)
        if guard is not None:
            run.push(guard)
        run.report(
            Kind.ENGINE_KEY_UNKNOWN,
            f"{run.profile.flags[0]}.{key}",
            where,
            "SystemExit",
            detail=f"`--{key}` is no option of this engine: its command line ends with 'unrecognized arguments'",
        )
        run.unwind(depth)


def _speaks_to_engine(run: Run) -> bool:
    """Return whether the module being executed imports the engine whose options are known (others take flags too)."""
    if run.current is None or not run.profile.flags:
        return False
    root = run.profile.flags[0].partition(".")[0]
    for value in run.current.names.values():
        if isinstance(value, ModuleValue) and value.name.partition(".")[0] == root:
            return True
        if isinstance(value, RefValue) and value.ref.package == root:
            return True
    return False
