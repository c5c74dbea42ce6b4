"""The state of one abstract execution of a subject against a target, and what moves it.

The statement and expression rules live in their own modules and are handed in as tables, so that they can call back
through `Run.evaluate` and `Run.execute`. A run keeps nothing in the subject; it is used once and thrown away.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from matrix.finding import Kind
from matrix.surface.answer import ImportFailure, Ref
from matrix.surface.entrypoints import Profile
from matrix.surface.execution.questions import Questions
from matrix.surface.execution.state import Draft, Flow, Frame, Guard, ModuleState, Raised, Returned, catches
from matrix.surface.execution.values import UNKNOWN, ClassValue, Edge, Env, FunctionValue, Names, Value, VersionText
from matrix.surface.subject import ROOT, Subject

MAX_DEPTH: Final = 4
"""How deep calls between the subject's functions are followed for their value."""


Evaluator = Callable[["Run", ast.expr, Env], Value]
Executor = Callable[["Run", ast.stmt, Env], Flow]


@dataclass(slots=True, eq=False)
class Run:
    """One execution: the inputs, the rule tables, and where the execution stands.

    `versions` are the import roots whose version the cell pins; which versions those are is a question to `world`.
    `defaults` holds, by source text, whether the default of a dataclass's field is true: what it is in an ordinary run.
    """

    subject: Subject
    world: Questions
    versions: frozenset[str]
    profile: Profile
    evaluators: Mapping[type[ast.AST], Evaluator]
    executors: Mapping[type[ast.AST], Executor]
    modules: dict[str, ModuleState] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    handled: list[Draft] = field(default_factory=list)
    current: ModuleState | None = None
    function: FunctionValue | None = None
    at_import: bool = True
    scope: tuple[str, ...] = ()
    frames: list[Frame] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    active: list[Raised] = field(default_factory=list)
    classes: list[ClassValue] = field(default_factory=list)
    known_attributes: set[tuple[str, str]] = field(default_factory=set)
    returned: list[Value] = field(default_factory=list)
    defaults: dict[str, bool] = field(default_factory=dict)
    results: dict[tuple[object, ...], Value] = field(default_factory=dict)
    quiet: int = 0
    depth: int = 0
    undecided: int = 0
    optional: int = 0
    doubts: int = 0
    version_reads: int = 0
    version_root: str = ""
    unreached: bool = False
    loaded: set[tuple[str, str]] = field(default_factory=set)
    pending: list[tuple[str, str]] = field(default_factory=list)
    _failures: dict[str, Draft | None] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------- executing
    def evaluate(self, node: ast.expr, env: Env) -> Value:
        """Return the abstract value of an expression; raises Raised where it is sure to raise inside a handler."""
        return self.evaluators[type(node)](self, node, env)

    def execute(self, body: Sequence[ast.stmt], env: Env) -> Flow:
        """Execute statements in order and return how the block ended."""
        depth = len(self.guards)
        try:
            for node in body:
                rule = self.executors.get(type(node))
                if rule is not None:
                    flow = rule(self, node, env)
                    if flow is not None:
                        return flow
            return None
        finally:
            if len(self.guards) > depth:
                self.unwind(depth)

    # --------------------------------------------------------------------------------------------------- guards
    def push(self, guard: Guard) -> None:
        """Enter the code behind a condition."""
        self.guards.append(guard)
        if not guard.decided:
            held = self.profile.holds(guard.condition)
            if (self.defaults.get(guard.condition.text) if held is None else held) is guard.taken:
                guard.ordinary, guard.doubtful = True, False
            self.undecided += 1
            self.optional += not guard.ordinary
            self.doubts += guard.doubtful
            if self.function is None and self.current is not None:
                self.current.open_ended = True

    def unwind(self, depth: int) -> None:
        """Leave conditions until `depth` of them are left."""
        while len(self.guards) > depth:
            guard = self.guards.pop()
            if not guard.decided:
                self.undecided -= 1
                self.optional -= not guard.ordinary
                self.doubts -= guard.doubtful

    def innermost_optional(self) -> Guard | None:
        """Return the condition nearest to the code being executed that an ordinary run may or may not meet."""
        if not self.optional:
            return None
        return next((guard for guard in reversed(self.guards) if guard.optional), None)

    # ------------------------------------------------------------------------------------------------ reporting
    def is_caught(self, exception: str) -> bool:
        """Return whether a handler around the present place catches `exception`."""
        return any(catches(frame.caught, exception) for frame in self.frames)

    def draft(self, kind: Kind, symbol: str, node: ast.AST, exception: str, *, target: str = "") -> Draft:
        """Return a new draft for the present place."""
        assert self.current is not None
        return Draft(
            kind=kind,
            symbol=symbol,
            target=target or symbol.partition(".")[0],
            module=self.current,
            node=node,
            exception=exception,
            at_import=self.at_import,
            function=self.function,
            scope=".".join(self.scope),
            guards=tuple(self.guards),
            certain=not self.doubts and not self.unreached,
            doubtful=bool(self.doubts),
        )

    def report(
        self,
        kind: Kind,
        symbol: str,
        node: ast.AST,
        exception: str,
        *,
        target: str = "",
        certain: bool = True,
        ref: Ref | None = None,
        detail: str = "",
        inside: ImportFailure | None = None,
    ) -> None:
        """Record a misfit, or raise Raised when a handler around the present place would catch the exception."""
        if self.quiet and not exception:
            return
        if self.current is None:
            # An annotation looked at from outside any module: it is asked what it names, not executed.
            raise Raised(exception, None)
        draft = self.draft(kind, symbol, node, exception, target=target)
        draft.ref, draft.detail, draft.certain, draft.inside = ref, detail, draft.certain and certain, inside
        if exception and (self.quiet or self.is_caught(exception)):
            if certain or not self.quiet:
                raise Raised(exception, draft)
            return
        self.record(draft)

    def record(self, draft: Draft) -> None:
        """Keep a draft that nothing around it handles."""
        if self.quiet:
            return
        self.drafts.append(draft)
        if draft.at_import and draft.exception and draft.certain and not self.undecided and self.current is not None:
            self.current.fatal.append(draft)

    # ------------------------------------------------------------------------------------------------- liveness
    def touch(self, value: FunctionValue | ClassValue) -> None:
        """Note that the code being executed refers to a function or class of the subject."""
        if self.quiet:
            return
        if not self.unreached:
            value.live = True
        if isinstance(value, ClassValue):
            return
        caller = self.function
        if caller is None:
            value.registered = True
            return
        if caller is value:
            return
        caught = tuple(frame.caught for frame in self.frames)
        edge = caller.edges.get(id(value))
        if edge is None:
            guard = self.innermost_optional()
            caller.edges[id(value)] = Edge(value, guard is None, caught, guard)
        else:
            edge.unconditional = edge.unconditional or not self.optional
            edge.caught = edge.caught if caught else ()

    def refer(self, text: str) -> None:
        """Note a dotted string that names a module of the subject, or a member of one: it may be loaded by it later."""
        module, member = text, ""
        if not self.subject.exists(module):
            module, _, member = text.rpartition(".")
            if not self.subject.exists(module):
                return
        if (module, member) not in self.pending:
            self.pending.append((module, member))
        if self.current is not None and all(name != module for name, _ in self.current.lazy):
            self.current.lazy.append((module, self.function))

    def hasattr_guards(self, node: ast.Attribute) -> bool:
        """Return whether an undecided `hasattr` around this place asks for just this attribute."""
        return bool(self.known_attributes) and (self.subject.text(node.value), node.attr) in self.known_attributes

    # -------------------------------------------------------------------------------------------------- modules
    def import_module(self, dotted: str) -> ModuleState | None:
        """Return the subject's module, executed when this is its first import; None when there is none."""
        state = self.modules.get(dotted)
        if state is not None:
            return state
        module = self.subject.module(dotted)
        if module is None:
            return None
        state = self.modules[dotted] = ModuleState(module)
        parent = dotted.rpartition(".")[0]
        if parent:
            above = self.import_module(parent)
            if above is not None:
                state.hard.append(above.name)
        if module.tree is not None:
            saved = self._enter(state, None, at_import=True)
            try:
                self.execute(module.tree.body, (state.names,))
            except Raised as raised:
                if raised.draft is not None:
                    self.record(raised.draft)
                # Raised on purpose for want of hardware or of a package: no misfit, but the module is not there.
                unfit = raised.draft or self.draft(Kind.PACKAGE_ABSENT, dotted, module.tree, raised.exception)
                if not state.fatal:
                    state.fatal.append(unfit)
            finally:
                self._leave(saved)
        state.finished = True
        return state

    def failure(self, name: str) -> Draft | None:
        """Return why importing the module `name` raises, None when nothing says it does."""
        if name in self._failures:
            return self._failures[name]
        seen: set[str] = set()
        found = self._failure(name, seen)
        # Not final while a module on the way is still being executed: it may fail yet.
        if found is not None:
            self._failures[name] = found
        elif all(self.modules[item].finished for item in seen if item in self.modules):
            # Nothing on the way fails, so nothing further along it does either.
            self._failures.update(dict.fromkeys(seen))
        return found

    def _failure(self, name: str, seen: set[str]) -> Draft | None:
        state = self.modules.get(name)
        if state is None or name in seen:
            return None
        seen.add(name)
        # A real misfit says more than the absence of an optional package, so it is looked for first.
        absent = None
        for draft in state.fatal:
            if draft.kind is not Kind.PACKAGE_ABSENT:
                return draft
            absent = absent or draft
        for above in state.hard:
            found = self._failure(above, seen)
            if found is not None and found.kind is not Kind.PACKAGE_ABSENT:
                return found
            absent = absent or found
        return absent

    # ------------------------------------------------------------------------------------------------ functions
    def run_function(self, function: FunctionValue, parameters: Names) -> None:
        """Execute a function's body as a later call would, with nothing known of its caller."""
        function.done = True
        saved = self._enter(function.module, function, at_import=False)
        try:
            self.execute(function.node.body, (parameters, *function.env))
        except Raised as raised:
            if raised.draft is not None:
                self.record(raised.draft)
        finally:
            self._leave(saved)

    def follow(self, function: FunctionValue, parameters: Names, *, quiet: bool) -> Flow:
        """Execute a function's body as part of the present code; with `quiet` for its value only.

        Raises Raised where the body raises.
        """
        saved = self._enter(function.module, function, at_import=self.at_import, inside=True)
        self.quiet += quiet
        self.depth += 1
        returned, self.returned = self.returned, []
        try:
            flow = self.execute(function.node.body, (parameters, *function.env))
            # A branch that may have returned earlier makes the value unknown, whatever the end returns.
            return Returned(UNKNOWN) if self.returned else flow
        finally:
            self.returned = returned
            self.depth -= 1
            self.quiet -= quiet
            self._leave(saved)

    def _enter(
        self, state: ModuleState, function: FunctionValue | None, *, at_import: bool, inside: bool = False
    ) -> tuple[object, ...]:
        saved = (
            self.current, self.function, self.at_import, self.scope, self.frames, self.guards, self.active,
            self.classes, self.known_attributes, self.undecided, self.optional, self.doubts, self.quiet, self.depth,
        )  # fmt: skip
        self.current, self.function, self.at_import = state, function, at_import
        owner = function.owner if function is not None else None
        self.scope = tuple(function.scope.split(".")) if function is not None else ()
        self.classes = [owner] if owner is not None else []
        self.known_attributes = set()
        if inside:
            self.guards, self.frames = list(self.guards), list(self.frames)
        else:
            self.frames, self.guards, self.active = [], [], []
            self.undecided = self.optional = self.doubts = self.quiet = self.depth = 0
        return saved

    def _leave(self, saved: tuple[object, ...]) -> None:
        (
            self.current, self.function, self.at_import, self.scope, self.frames, self.guards, self.active,
            self.classes, self.known_attributes, self.undecided, self.optional, self.doubts, self.quiet, self.depth,
        ) = saved  # type: ignore[assignment]  # fmt: skip

    # ---------------------------------------------------------------------------------------------------- roots
    def is_own(self, dotted: str) -> bool:
        """Return whether a dotted name is in the subject's own package."""
        return dotted == ROOT or dotted.startswith(f"{ROOT}.")

    def absent(self, dotted: str) -> bool:
        """Return whether the cell holds no package of that import root."""
        return dotted.partition(".")[0] in self.profile.absent

    def version_of(self, distribution: str) -> VersionText | None:
        """Return the version of a distribution (or import root) that the cell pins, marked as such; None if open."""
        root = distribution.replace("-", "_").lower()
        return VersionText(root) if root in self.versions else None

    def text_of(self, version: VersionText) -> str:
        """Return what a version reads; the execution then depends on the exact version."""
        return self.world.version_text(version.root) if version.text is None else version.text

    def missing_by_assumption(self, dotted: str) -> bool:
        """Return whether the assumed machine lacks this name (`torch.npu` on NVIDIA)."""
        return dotted in self.profile.missing

    # ------------------------------------------------------------------------------------------------- ending
    def dispose(self) -> None:
        """Cut the cycles between namespaces, functions and classes, so that counting alone frees the run's memory."""
        for state in self.modules.values():
            for function in state.functions:
                function.edges.clear()
                function.env = ()
                if function.owner is not None:
                    function.owner.body.clear()
                    function.owner.attributes.clear()
            state.names.clear()
            state.functions.clear()
        self.modules.clear()
        self.results.clear()


def all_functions(run: Run) -> Iterable[FunctionValue]:
    """Return the functions and methods of every module executed so far whose import does not fail on a misfit."""
    found: list[FunctionValue] = []
    for state in list(run.modules.values()):
        failing = run.failure(state.name)
        if failing is None or failing.kind is Kind.PACKAGE_ABSENT:
            found.extend(state.functions)
    return found
