"""Overrides: methods of the subject's classes that stand in for methods of the target's."""

from __future__ import annotations

from collections.abc import Sequence

from matrix.finding import Kind
from matrix.surface.answer import Presence, Ref
from matrix.surface.execution.overriding import own_signature
from matrix.surface.execution.run import Run
from matrix.surface.execution.values import ClassValue, FunctionValue, RefValue

# Called by who makes the object or by the language, not by the base class.
_OWN = frozenset(
    {"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__", "__repr__", "__str__"}
)


def check_class(run: Run, cls: ClassValue) -> None:
    """Report the methods of a class that the target's base class can no longer call, or no longer knows."""
    bases = [base.ref for base in cls.bases if isinstance(base, RefValue) and base.ref.kind == "class"]
    if not bases:
        return
    saved = run.at_import
    run.at_import = False
    try:
        for name, function in cls.body.items():
            if isinstance(function, FunctionValue) and name not in _OWN:
                _check_method(run, cls, bases, name, function)
    finally:
        run.at_import = saved


def _check_method(run: Run, cls: ClassValue, bases: Sequence[Ref], name: str, function: FunctionValue) -> None:
    for base in bases:
        answer = run.world.attribute(base, name)
        if answer.presence is Presence.MISSING:
            continue
        if answer.ref is not None and answer.ref.kind == "method":
            _check_fit(run, base, name, answer.ref, function)
        return
    if len(bases) == len(cls.bases) and run.subject.function(function.node).overrides:
        symbol = f"{bases[0].dotted}.{name}"
        run.report(
            Kind.OVERRIDE_ORPHANED,
            symbol,
            function.node,
            "",
            ref=bases[0],
            detail=f"{cls.node.name}.{name} overrides nothing",
        )


def _check_fit(run: Run, base: Ref, name: str, method: Ref, function: FunctionValue) -> None:
    static = run.subject.function(function.node).static
    ours = own_signature(function.node, bound=not static)
    fault, sure = run.world.override(method, ours)
    if fault:
        symbol = f"{base.dotted}.{name}"
        run.report(Kind.OVERRIDE_MISMATCH, symbol, function.node, "TypeError", ref=method, detail=fault, certain=sure)
