"""What an execution asks of its target, question by question, in a form in which answers can be compared and replayed.

An execution is a function of the answers alone: two worlds that answer alike give the same findings. So that releases
which differ in nothing that verl uses do answer alike, a question is as narrow as its use: not "what is the signature"
but "does this call fit", not "which version" but "is it at least 0.18".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, cast

from packaging.version import InvalidVersion, Version

from matrix.finding import Kind
from matrix.surface.answer import Answer, ImportFailure, Presence, Ref, Signature
from matrix.surface.entrypoints import Profile
from matrix.surface.execution.overriding import misfit
from matrix.surface.execution.target import Target

Question = tuple[object, ...]
"""The name of a method below and its arguments; hashable."""

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "Eq": eq,
    "NotEq": ne,
    "Lt": lt,
    "LtE": le,
    "Gt": gt,
    "GtE": ge,
}

# Options of `vllm serve` itself that are no field of an argument class.
_SERVE_OPTIONS: Final = frozenset({"config", "headless", "api_server_count", "model", "model_tag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How something is called: how many positions, which keywords, whether there may be more of either."""

    positional: int
    keywords: tuple[str, ...]
    more_positional: bool
    more_keywords: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why a call does not fit: the kind, the symbol, a detail, and whether it is certain."""

    kind: Kind
    symbol: str
    detail: str = ""
    certain: bool = True

    def is_about(self, keyword: str) -> bool:
        """Return whether it is this keyword that does not fit: the symbol ends with `(keyword=)` or `.keyword`."""
        return self.symbol.endswith((f"({keyword}=)", f".{keyword}"))


@dataclass(slots=True)
class Questions:
    """A target under questioning: every question is asked once; `log` holds them in order with their answers."""

    world: Target
    versions: Mapping[str, Version]
    profile: Profile
    log: list[tuple[Question, object]] = field(default_factory=list)
    _known: dict[Question, object] = field(default_factory=dict)

    def ask(self, question: Question) -> object:
        """Return the answer to a question as it stands in a log."""
        try:
            return self._known[question]
        except KeyError:
            answer = self._known[question] = getattr(self, f"_{question[0]}")(*question[1:])
            self.log.append((question, answer))
            return answer

    # ------------------------------------------------------------------------------------------------- the target
    def covers(self, dotted: str) -> bool:
        """Return whether the package of this name is in the world."""
        return bool(self.ask(("covers", dotted.partition(".")[0])))

    def _covers(self, root: str) -> bool:
        return self.world.covers(root)

    def module(self, dotted: str) -> Presence:
        """Return whether the module is there."""
        return cast("Presence", self.ask(("module", dotted)))

    def _module(self, dotted: str) -> Presence:
        return self.world.module(dotted)

    def lookup(self, module: str, name: str) -> Answer:
        """Return what `from module import name` finds."""
        return cast("Answer", self.ask(("lookup", module, name)))

    def _lookup(self, module: str, name: str) -> Answer:
        answer = self.world.lookup(module, name)
        # A version is asked for by its own questions.
        return Answer(presence=answer.presence) if name == "__version__" else answer

    def import_failure(self, module: str, name: str = "") -> ImportFailure | None:
        """Return why the target's own code raises when `name` is imported from `module`, None where it is not seen to.

        Only another package of the cell can be why, so a cell with a single one is not asked.
        """
        if len(self.versions) < 2 or module.partition(".")[0] not in self.profile.followed:
            return None
        return cast("ImportFailure | None", self.ask(("import_failure", module, name)))

    def _import_failure(self, module: str, name: str) -> ImportFailure | None:
        return self.world.import_failure(module, name)

    def attribute(self, ref: Ref, name: str, *, instance: bool = False) -> Answer:
        """Return what `ref.name` finds, on the class or on an instance of it."""
        return cast("Answer", self.ask(("attribute", ref, name, instance)))

    def _attribute(self, ref: Ref, name: str, instance: bool) -> Answer:
        return self.world.attribute(ref, name, instance=instance)

    def returns(self, ref: Ref) -> Answer:
        """Return of what class its return value is an instance."""
        return cast("Answer", self.ask(("returns", ref)))

    def _returns(self, ref: Ref) -> Answer:
        return self.world.returns(ref)

    def needs_no_instance(self, ref: Ref) -> bool:
        """Return whether a method can be called through its class: a class method or a static one."""
        return bool(self.ask(("needs_no_instance", ref)))

    def _needs_no_instance(self, ref: Ref) -> bool:
        return self.world.is_classmethod(ref) or self.world.is_staticmethod(ref)

    # ------------------------------------------------------------------------------------------------- signatures
    def parameter(self, ref: Ref, name: str) -> bool | None:
        """Return whether a callable has a parameter of that name, None when that is not known."""
        return cast("bool | None", self.ask(("parameter", ref, name)))

    def _parameter(self, ref: Ref, name: str) -> bool | None:
        signature = self.world.signature(ref)
        if signature is None or not signature.certain:
            return None
        return name in signature.positional or name in signature.keyword_only

    def misfits(self, ref: Ref, shape: Shape, *, bound: bool) -> tuple[Misfit, ...]:
        """Return why a call does not fit, empty when it does or that is not known."""
        return cast("tuple[Misfit, ...]", self.ask(("misfits", ref, shape, bound)))

    def _misfits(self, ref: Ref, shape: Shape, bound: bool) -> tuple[Misfit, ...]:
        signature = self.world.signature(ref, bound=bound)
        if signature is None:
            return ()
        found = list(call_misfits(ref.dotted, signature, shape))
        if signature.var_keyword and ref.dotted in self.profile.forwards:
            found += self._forwarded(ref, signature, shape)
        return tuple(found)

    def _forwarded(self, ref: Ref, signature: Signature, shape: Shape) -> list[Misfit]:
        """Return the keywords that a callable hands on (`LLM(**kwargs)` to `EngineArgs`) and that do not fit there."""
        target = self.profile.forwards[ref.dotted]
        module, _, name = target.rpartition(".")
        answer = self.world.lookup(module, name)
        final = self.world.signature(answer.ref) if answer.ref is not None else None
        if final is None or final.var_keyword:
            return []
        accepted = {*signature.positional, *signature.keyword_only, *final.positional, *final.keyword_only}
        return [
            Misfit(
                kind=Kind.ENGINE_KEY_UNKNOWN,
                symbol=f"{target}.{key}",
                detail=f"{ref.dotted} hands `{key}` on to {target}, which does not take it",
                certain=final.certain,
            )
            for key in shape.keywords
            if key not in accepted
        ]

    def option(self, name: str) -> bool | None:
        """Return whether the engine's command line takes an option, None when its options cannot be read."""
        return cast("bool | None", self.ask(("option", name.replace("-", "_"))))

    def _option(self, name: str) -> bool | None:
        names: set[str] = set(_SERVE_OPTIONS)
        for index, dotted in enumerate(self.profile.flags):
            module, _, holder = dotted.rpartition(".")
            answer = self.world.lookup(module, holder)
            signature = None
            if answer.presence is Presence.PRESENT and answer.ref is not None and answer.ref.kind == "class":
                signature = self.world.signature(answer.ref)
            if signature is None or not (signature.positional or signature.keyword_only):
                # Older releases lack the second class; without the first nothing is known.
                if index == 0 or signature is not None:
                    return None
                continue
            names.update(signature.positional, signature.keyword_only)
        return name in names

    def override(self, method: Ref, ours: Signature) -> tuple[str, bool]:
        """Return why an override cannot be called as the target's method is, and whether that is sure."""
        return cast("tuple[str, bool]", self.ask(("override", method, ours)))

    def _override(self, method: Ref, ours: Signature) -> tuple[str, bool]:
        theirs = self.world.signature(method)
        if theirs is None or not theirs.certain or self.world.is_property(method):
            return "", False
        return misfit(ours, theirs)

    # --------------------------------------------------------------------------------------------------- versions
    def version_text(self, root: str) -> str:
        """Return the pinned version of a package; ask narrower where that will do."""
        return str(self.ask(("version_text", root)))

    def _version_text(self, root: str) -> str:
        return str(self.versions[root])

    def compare(self, root: str, operator: str, other: str) -> bool:
        """Return `version operator other`, compared as versions."""
        return bool(self.ask(("compare", root, operator, other)))

    def _compare(self, root: str, operator: str, other: str) -> bool:
        return OPERATORS[operator](self.versions[root], Version(other))

    def compare_text(self, root: str, operator: str, other: str) -> tuple[bool, bool]:
        """Return `version operator other` compared as text, and whether comparing versions says otherwise."""
        return cast("tuple[bool, bool]", self.ask(("compare_text", root, operator, other)))

    def _compare_text(self, root: str, operator: str, other: str) -> tuple[bool, bool]:
        said = OPERATORS[operator](str(self.versions[root]), other)
        if operator in ("Eq", "NotEq"):
            return said, False
        try:
            return said, said is not OPERATORS[operator](self.versions[root], Version(other))
        except InvalidVersion:
            return said, False

    def tests(self, root: str, method: str, words: tuple[object, ...]) -> bool:
        """Return what `startswith` or `endswith` says of the version's text."""
        return bool(self.ask(("tests", root, method, words)))

    def _tests(self, root: str, method: str, words: tuple[object, ...]) -> bool:
        return bool(getattr(str(self.versions[root]), method)(*words))


def call_misfits(dotted: str, signature: Signature, shape: Shape) -> tuple[Misfit, ...]:
    """Return the keywords, positions and missing arguments of a call that a signature does not allow."""
    found = []
    accepted = {*signature.positional[signature.positional_only :], *signature.keyword_only}
    if not signature.var_keyword:
        gone = [name for name in shape.keywords if name not in accepted]
        found += [
            Misfit(kind=Kind.KEYWORD_REMOVED, symbol=f"{dotted}({name}=)", certain=signature.certain) for name in gone
        ]
    most = len(signature.positional)
    if not shape.more_positional and not signature.var_positional and shape.positional > most:
        detail = f"takes {most} positional arguments, {shape.positional} are given"
        found.append(
            Misfit(kind=Kind.POSITIONAL_EXCESS, symbol=f"{dotted}()", detail=detail, certain=signature.certain)
        )
    if shape.more_positional or shape.more_keywords:
        return tuple(found)
    present = {*shape.keywords, *signature.positional[: shape.positional]}
    for name in (*signature.positional, *sorted(signature.keyword_only)):
        if name in signature.required and name not in present:
            found.append(
                Misfit(
                    kind=Kind.ARGUMENT_REQUIRED,
                    symbol=f"{dotted}({name}=)",
                    detail=f"`{name}` has no default",
                    certain=signature.certain,
                )
            )
    return tuple(found)
