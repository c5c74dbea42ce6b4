"""The order of an execution: entry points, then what they lead to, then what nothing refers to."""

from __future__ import annotations

from matrix.surface.entrypoints import Profile
from matrix.surface.execution.definitions import parameters
from matrix.surface.execution.expressions import EVALUATORS
from matrix.surface.execution.questions import Questions
from matrix.surface.execution.run import Run, all_functions
from matrix.surface.execution.statements import EXECUTORS
from matrix.surface.execution.values import ClassValue, FunctionValue
from matrix.surface.subject import Subject

_FIRST = ("__init__", "__post_init__", "__new__")
_MAINS = ("main", "run_ppo", "main_task", "run")


def explore(subject: Subject, world: Questions, versions: frozenset[str], profile: Profile) -> Run:
    """Return the finished execution of every entry point of the subject and of what is reached from them."""
    run = load_entries(subject, world, versions, profile)
    while _load_pending(run) or _run_live(run):
        pass
    run.unreached = True
    while rest := [function for function in all_functions(run) if not function.done]:
        for function in rest:
            function.unreached = True
            run.run_function(function, parameters(run, function))
    return run


def load_entries(subject: Subject, world: Questions, versions: frozenset[str], profile: Profile) -> Run:
    """Return an execution in which the entry points have been imported, and no function called that imports do not."""
    run = Run(subject, world, versions, profile, EVALUATORS, EXECUTORS)
    for entry in profile.entries:
        if subject.exists(entry.module):
            run.import_module(entry.module)
    return run


def _load_pending(run: Run) -> bool:
    """Import the modules that were named by a string, and take the named members as used."""
    pending, run.pending = run.pending, []
    worked = False
    for module, member in pending:
        if (module, member) in run.loaded:
            continue
        run.loaded.add((module, member))
        worked = True
        state = run.import_module(module)
        value = state.names.get(member) if state is not None else None
        if isinstance(value, FunctionValue | ClassValue):
            value.live = True
    return worked


def _run_live(run: Run) -> bool:
    """Execute the functions that live code refers to; return whether there were any."""
    todo = [function for function in all_functions(run) if not function.done and is_live(run, function)]
    # What `__init__` sets on `self` is known when the other methods run.
    todo.sort(key=lambda function: function.node.name not in _FIRST)
    for function in todo:
        run.run_function(function, parameters(run, function))
    return bool(todo)


def is_live(run: Run, function: FunctionValue) -> bool:
    """Return whether anything that runs refers to the function, by name, through its class or by registration."""
    if function.live or function.registered or function.node.name in _MAINS:
        return True
    if function.owner is not None and (function.owner.live or function.owner.registered):
        return True
    return run.profile.on_default_path(function.module.name, function.scope)
