"""What reaches what: from entry points over imports to modules, from ordinary runs over calls to functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matrix.finding import Kind
from matrix.surface.entrypoints import EntryPoint
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Draft, Guard, catches
from matrix.surface.execution.values import FunctionValue


class Reach:
    """The answers about one finished run; each closure is computed once."""

    def __init__(self, run: Run) -> None:
        """Take the run's import and call edges."""
        self._run = run
        self.entries = tuple(entry for entry in run.profile.entries if entry.module in run.modules)
        hard, loose = self._hard_edges(), self._loose_edges()
        self._hard = {entry.name: _closure(entry.module, hard) for entry in self.entries}
        self._distance = {entry.name: _distances(entry.module, hard, loose) for entry in self.entries}
        self._functions = [function for state in run.modules.values() for function in state.functions]
        self._callers = _callers(self._functions)
        self.default = _unconditional(self._default_roots())

    def _hard_edges(self) -> Mapping[str, Iterable[str]]:
        return {name: state.hard for name, state in self._run.modules.items()}

    def _loose_edges(self) -> Mapping[str, Iterable[str]]:
        return {
            name: [*(name for name, _ in state.guarded), *(name for name, _ in state.lazy)]
            for name, state in self._run.modules.items()
        }

    def _default_roots(self) -> list[FunctionValue]:
        profile = self._run.profile
        return [item for item in self._functions if profile.on_default_path(item.module.name, item.scope)]

    def broken_by(self, module: str) -> tuple[EntryPoint, ...]:
        """Return the entry points whose import executes the module's import without a guard."""
        return tuple(entry for entry in self.entries if module in self._hard[entry.name])

    def reaching(self, module: str) -> tuple[EntryPoint, ...]:
        """Return the entry points that lead to the module over the fewest lazy imports."""
        steps = {entry.name: self._distance[entry.name].get(module) for entry in self.entries}
        least = min((step for step in steps.values() if step is not None), default=None)
        return tuple(entry for entry in self.entries if least is not None and steps[entry.name] == least)

    def importers(self, module: str) -> tuple[bool, str]:
        """Return whether somebody imports the module lazily without a handler, and a handler around a guarded one."""
        names = {module} | {name for name, closure in self._closures() if module in closure}
        unguarded, guard = False, ""
        for state in self._run.modules.values():
            unguarded = unguarded or any(name in names for name, _ in state.lazy)
            for name, node in state.guarded:
                if name in names and node is not None and not guard:
                    guard = self._run.subject.text(node).partition(":")[0]
        return unguarded, guard

    def _closures(self) -> Iterable[tuple[str, frozenset[str]]]:
        edges = self._hard_edges()
        return [(name, _closure(name, edges)) for name in self._run.modules]

    def escapes(self, function: FunctionValue | None, exception: str) -> bool:
        """Return whether an exception raised in the function reaches a user, or every caller handles it."""
        return function is None or self._escapes(function, exception, set())

    def _escapes(self, function: FunctionValue, exception: str, seen: set[int]) -> bool:
        callers = self._callers.get(id(function), ())
        if not callers or function.registered:
            return True
        seen.add(id(function))
        for caller, caught in callers:
            if caught and any(catches(names, exception) for names in caught):
                continue
            if id(caller) not in seen and self._escapes(caller, exception, seen):
                return True
        return False

    def called_when(self, function: FunctionValue | None) -> Guard | None:
        """Return the condition under which the function is called, None when some caller has none."""
        if function is None or id(function) in self.default:
            return None
        guards = []
        for caller, _ in self._callers.get(id(function), ()):
            edge = caller.edges[id(function)]
            if edge.unconditional:
                return None
            guards.append(edge.guard)
        return next((guard for guard in guards if guard is not None), None)


def _closure(start: str, edges: Mapping[str, Iterable[str]]) -> frozenset[str]:
    seen = {start}
    todo = [start]
    while todo:
        for name in edges.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return frozenset(seen)


def _distances(start: str, hard: Mapping[str, Iterable[str]], loose: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return over how many lazy imports each module is reached at least."""
    found: dict[str, int] = {}
    edge, step = {start}, 0
    while edge:
        todo = [name for name in edge if name not in found]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = step
                todo.extend(hard.get(name, ()))
        reached = [name for name, distance in found.items() if distance == step]
        edge = {name for near in reached for name in loose.get(near, ()) if name not in found}
        step += 1
    return found


def _callers(
    functions: Iterable[FunctionValue],
) -> dict[int, list[tuple[FunctionValue, tuple[frozenset[str] | None, ...]]]]:
    found: dict[int, list[tuple[FunctionValue, tuple[frozenset[str] | None, ...]]]] = {}
    for caller in functions:
        if not caller.unreached:
            for key, edge in caller.edges.items():
                found.setdefault(key, []).append((caller, edge.caught))
    return found


def _unconditional(roots: Iterable[FunctionValue]) -> frozenset[int]:
    """Return the ids of the functions that the roots are sure to call, they included."""
    todo = list(roots)
    seen = {id(function) for function in todo}
    while todo:
        for edge in todo.pop().edges.values():
            if edge.unconditional and id(edge.callee) not in seen:
                seen.add(id(edge.callee))
                todo.append(edge.callee)
    return frozenset(seen)


def is_absence(draft: Draft | None) -> bool:
    """Return whether the only trouble is a package that no cell holds."""
    return draft is not None and draft.kind is Kind.PACKAGE_ABSENT
