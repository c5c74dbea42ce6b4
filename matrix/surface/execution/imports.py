"""Imports: of the subject's own modules, of the target's, and of packages that no cell holds."""

from __future__ import annotations

import ast

from matrix.finding import Kind
from matrix.surface.answer import Answer, Presence
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Flow, ModuleState, Raised, catches
from matrix.surface.execution.values import (
    UNKNOWN,
    ClassValue,
    Env,
    ExternalValue,
    FunctionValue,
    InstanceValue,
    ModuleValue,
    RefValue,
    TypeCheckingValue,
    Value,
)


def import_statement(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `import a.b as c`."""
    assert isinstance(node, ast.Import)
    for alias in node.names:
        value = import_module(run, alias.name, node)
        if alias.asname:
            env[0][alias.asname] = value
        else:
            root = alias.name.partition(".")[0]
            known = run.is_own(root) or run.world.covers(root)
            env[0][root] = ModuleValue(root) if known else ExternalValue(root)
    return None


def import_from(run: Run, node: ast.stmt, env: Env) -> Flow:
    """Execute `from a.b import c`, relative and star imports included."""
    assert isinstance(node, ast.ImportFrom)
    assert run.current is not None
    module = run.current.module.absolute(node.level, node.module)
    if module == "__future__":
        return None
    for alias in node.names:
        if alias.name == "*":
            import_module(run, module, node)
            _import_star(run, module, env)
        else:
            env[0][alias.asname or alias.name] = import_name(run, module, alias.name, node)
    return None


def import_module(run: Run, dotted: str, node: ast.AST) -> Value:
    """Return the module that `import dotted` gives; what is missing is reported."""
    if run.is_own(dotted):
        return _import_own(run, dotted, node)
    if run.absent(dotted):
        root = dotted.partition(".")[0]
        run.report(Kind.PACKAGE_ABSENT, dotted, node, "ImportError", target=root, detail=run.profile.absent[root])
        return UNKNOWN
    if not run.world.covers(dotted):
        return ExternalValue(dotted)
    if run.world.module(dotted) is Presence.MISSING:
        run.report(Kind.MODULE_MISSING, dotted, node, "ImportError")
        return UNKNOWN
    return UNKNOWN if _fails_inside(run, dotted, "", node) else ModuleValue(dotted)


def _fails_inside(run: Run, module: str, name: str, node: ast.AST) -> bool:
    """Report where the target's own code raises when it is imported, since another target lacks what it takes."""
    failure = run.world.import_failure(module, name)
    if failure is None or run.subject.stores(failure.symbol.rpartition(".")[2]):
        return False
    run.report(failure.kind, failure.symbol, node, failure.exception, inside=failure)
    return True


def _import_own(run: Run, dotted: str, node: ast.AST) -> Value:
    if not run.subject.exists(dotted):
        run.report(Kind.OWN_MODULE_MISSING, dotted, node, "ImportError", target="verl")
        return UNKNOWN
    parts = dotted.split(".")
    for count in range(1, len(parts) + 1):
        state = run.import_module(".".join(parts[:count]))
        if state is not None:
            _link(run, state, node)
    return ModuleValue(dotted)


def _link(run: Run, state: ModuleState, node: ast.AST) -> None:
    """Note that the code being executed imports `state`, and raise what that import raises where it is handled."""
    current = run.current
    if current is None or current is state or run.quiet:
        return
    if not run.at_import:
        if all(name != state.name or function is not run.function for name, function in current.lazy):
            current.lazy.append((state.name, run.function))
        _raise_failure(run, state)
        return
    if run.undecided:
        current.lazy.append((state.name, None))
        _raise_failure(run, state)
        return
    failing = run.failure(state.name) if state.finished else None
    frame = next((f for f in reversed(run.frames) if failing is None or catches(f.caught, failing.exception)), None)
    if frame is not None and (failing is not None or catches(frame.caught, "ImportError")):
        current.guarded.append((state.name, frame.node))
        _raise_failure(run, state)
    elif state.name not in current.hard:
        current.hard.append(state.name)


def _raise_failure(run: Run, state: ModuleState) -> None:
    failing = run.failure(state.name) if state.finished else None
    if failing is not None and run.is_caught(failing.exception):
        raise Raised(failing.exception, None)


def import_name(run: Run, module: str, name: str, node: ast.AST) -> Value:
    """Return what `from module import name` binds; what is missing is reported."""
    if run.is_own(module):
        return _own_name(run, module, name, node)
    if module == "typing" and name == "TYPE_CHECKING":
        return TypeCheckingValue()
    imported = import_module(run, module, node)
    if isinstance(imported, ModuleValue):
        return _target_name(run, module, name, node)
    if isinstance(imported, ExternalValue):
        return ExternalValue(f"{module}.{name}")
    return imported


def _own_name(run: Run, module: str, name: str, node: ast.AST) -> Value:
    import_module(run, module, node)
    state = run.modules.get(module)
    if state is None:
        return UNKNOWN
    if name in state.names:
        value = state.names[name]
        if isinstance(value, ClassValue):
            run.touch(value)
        return value
    if run.subject.exists(f"{module}.{name}"):
        return import_module(run, f"{module}.{name}", node)
    facts = state.module.facts
    open_ended = facts.dynamic or facts.has_getattr or "*" in state.module.bound or state.module.tree is None
    if open_ended or not state.finished or state.fatal or run.failure(module) is not None:
        return UNKNOWN
    if name not in state.module.bound or not state.open_ended:
        # Else some branch that could not be decided may bind it.
        run.report(Kind.NAME_MISSING, f"{module}.{name}", node, "ImportError", target="verl")
    return UNKNOWN


def _target_name(run: Run, module: str, name: str, node: ast.AST) -> Value:
    answer = run.world.lookup(module, name)
    if answer.presence is Presence.MISSING:
        run.report(Kind.NAME_MISSING, f"{module}.{name}", node, "ImportError")
        return UNKNOWN
    if name == "__version__" and "." not in module:
        return run.version_of(module) or UNKNOWN
    if _fails_inside(run, module, name, node):
        return UNKNOWN
    return from_answer(run, answer)


def from_answer(run: Run, answer: Answer) -> Value:
    """Return the value that an answer of the target stands for."""
    if answer.presence is not Presence.PRESENT:
        return UNKNOWN
    if answer.has_constant:
        return answer.constant
    if answer.instance_of is not None:
        return InstanceValue(answer.instance_of, answer.exact)
    if answer.ref is None:
        return UNKNOWN
    if answer.ref.kind == "module":
        return ModuleValue(answer.ref.dotted)
    return UNKNOWN if answer.ref.kind == "value" else RefValue(answer.ref)


def _import_star(run: Run, module: str, env: Env) -> None:
    state = run.modules.get(module)
    if state is None:
        return
    exported = state.names.get("__all__")
    for name, value in list(state.names.items()):
        listed = isinstance(exported, tuple) and name in exported
        if listed or (not isinstance(exported, tuple) and not name.startswith("_")):
            if isinstance(value, ClassValue):
                run.touch(value)
            env[0][name] = value


def own_attribute(run: Run, module: str, name: str) -> Value:
    """Return what `module.name` is for a module of the subject."""
    state = run.modules.get(module)
    if state is not None and name in state.names:
        value = state.names[name]
        if isinstance(value, FunctionValue | ClassValue):
            run.touch(value)
        return value
    return ModuleValue(f"{module}.{name}") if run.subject.exists(f"{module}.{name}") else UNKNOWN


def dotted_target(run: Run, text: str, node: ast.AST, *, patch: bool) -> Value:
    """Resolve a dotted string (`pkg.mod.Class.method`) as the code would at run time; what is missing is reported.

    With `patch` it is the target of `unittest.mock.patch`, which raises AttributeError for a missing last part.
    """
    root = text.partition(".")[0]
    if run.is_own(text):
        return _own_dotted(run, text, node)
    if not run.world.covers(root) or "." not in text:
        return UNKNOWN
    parts = text.split(".")
    split = len(parts)
    while split > 1 and run.world.module(".".join(parts[:split])) is Presence.MISSING:
        split -= 1
    value: Value = ModuleValue(".".join(parts[:split]))
    for index in range(split, len(parts)):
        answer = _member(run, value, parts[index])
        if answer is None or answer.presence is Presence.OPAQUE:
            return UNKNOWN
        if answer.presence is Presence.MISSING:
            last = index == len(parts) - 1
            kind = Kind.PATCH_TARGET_MISSING if patch else Kind.DOTTED_STRING_MISSING
            run.report(
                kind,
                text,
                node,
                "AttributeError" if last else "ImportError",
                detail=f"no {'.'.join(parts[: index + 1])}",
            )
            return UNKNOWN
        value = from_answer(run, answer)
    return value


def _member(run: Run, value: Value, name: str) -> Answer | None:
    if isinstance(value, ModuleValue):
        return run.world.lookup(value.name, name)
    if isinstance(value, RefValue) and value.ref.kind == "class":
        return run.world.attribute(value.ref, name)
    return None


def _own_dotted(run: Run, text: str, node: ast.AST) -> Value:
    """Note that a dotted string names a module (or a member of one) of the subject: it will be loaded later."""
    module, name = text, ""
    if not run.subject.exists(module):
        module, _, name = text.rpartition(".")
        if not run.subject.exists(module):
            return UNKNOWN
    if run.quiet:
        return UNKNOWN
    if run.at_import:
        run.refer(text)
        return UNKNOWN
    value = import_module(run, module, node)
    return own_attribute(run, module, name) if name else value
