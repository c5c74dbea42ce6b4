"""Where names lead: follows imports, re-exports, star imports and aliases to what a name is at run time."""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping

from packaging.version import Version

from matrix.surface.answer import Answer, Presence, Ref, RefKind
from matrix.surface.expressions import dotted
from matrix.surface.facts import Bind, Binding, ModuleFacts, When
from matrix.surface.lazy import LazyNames
from matrix.surface.modules import ModuleKind, Package

PRESENT = Answer(presence=Presence.PRESENT)
MISSING = Answer(presence=Presence.MISSING)
OPAQUE = Answer(presence=Presence.OPAQUE)

_OF_EVERY_MODULE = frozenset(dir(types.ModuleType)) | {
    "__builtins__",
    "__cached__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__path__",
    "__spec__",
    "__warningregistry__",
}
_LONGEST_ANNOTATION = 400
_PREFERENCE = {When.ALWAYS: 0, When.TRY: 1, When.MAYBE: 2, When.HANDLER: 3}


class Names:
    """Answers for module-level names of the packages of a world."""

    def __init__(
        self, packages: Mapping[str, Package], versions: Mapping[str, Version], absent: frozenset[str]
    ) -> None:
        """Read nothing yet; `absent` are import roots that are known not to be installed."""
        self.packages = packages
        self.versions = versions
        self.absent = absent
        self._lazy = LazyNames(self)
        self._known: dict[tuple[str, str], Answer] = {}
        self._active: set[tuple[str, str]] = set()

    def package(self, dotted: str) -> Package | None:
        """Return the package that a dotted name belongs to, or None outside the world."""
        return self.packages.get(dotted.partition(".")[0])

    def facts(self, module: str) -> ModuleFacts | None:
        """Return the facts of a source module of this world, else None."""
        package = self.package(module)
        return package.facts(module) if package is not None else None

    def module(self, dotted: str) -> Presence:
        """Return whether a module of that name can be imported, as far as its existence goes."""
        package = self.package(dotted)
        if package is None:
            return Presence.MISSING if dotted.partition(".")[0] in self.absent else Presence.OPAQUE
        if package.kind(dotted) is not None:
            return Presence.PRESENT
        if package.under_compiled(dotted):
            return Presence.OPAQUE
        if self._lazy.alias(dotted):
            return Presence.PRESENT
        return self._registered(package, dotted)

    def _registered(self, package: Package, dotted: str) -> Presence:
        """Return whether an ancestor puts such a module into `sys.modules` when it is imported."""
        parts = dotted.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            facts = package.facts(".".join(parts[:depth]))
            if facts is None:
                continue
            if dotted in facts.registered:
                return Presence.PRESENT
            # Names that are made up at run time are new ones (`torch.<device>`), not members of modules that are there.
            below = ".".join(parts[: depth + 1])
            if "?" in facts.registered and not facts.lazy and package.kind(below) is None:
                return Presence.OPAQUE
        return Presence.MISSING

    def lookup(self, module: str, name: str) -> Answer:
        """Return what `from module import name` gives."""
        key = (module, name)
        if key in self._known:
            return self._known[key]
        if key in self._active:
            # `from . import sub` asks for itself; any other circle of re-exports is not followed.
            package = self.package(module)
            submodule = self._submodule(package, module, name) if package is not None else MISSING
            return submodule if submodule.presence is Presence.PRESENT else OPAQUE
        self._active.add(key)
        try:
            answer = self._known[key] = self._lookup(module, name)
        finally:
            self._active.discard(key)
        return answer

    def _lookup(self, module: str, name: str) -> Answer:
        package = self.package(module)
        if package is None:
            return MISSING if module.partition(".")[0] in self.absent else OPAQUE
        if name == "__version__" and module in self.versions:
            return Answer(presence=Presence.PRESENT, constant=str(self.versions[module]), has_constant=True)
        match package.kind(module):
            case ModuleKind.COMPILED:
                return OPAQUE
            case ModuleKind.NAMESPACE:
                return self._submodule(package, module, name)
            case None:
                target = self._lazy.alias(module)
                if target:
                    return self._lazy.through_alias(target, name)
                return MISSING if self.module(module) is Presence.MISSING else OPAQUE
        facts = package.facts(module)
        if facts is None:
            return OPAQUE
        if facts.lazy is not None:
            return self._lazy.lookup(package, module, facts, name)
        return self._in_source(package, module, facts, name)

    def _in_source(self, package: Package, module: str, facts: ModuleFacts, name: str) -> Answer:
        """Look where Python looks: the namespace, what stars brought into it, a submodule, `__getattr__`."""
        found = self.bound(module, facts, name)
        if found is not None and found.presence is not Presence.MISSING:
            return found
        starred = self._starred(facts, name)
        if starred.presence is Presence.PRESENT:
            return starred
        submodule = self._submodule(package, module, name)
        if submodule.presence is not Presence.MISSING:
            return submodule
        served = self._lazy.served(module, facts, name)
        if served.presence is not Presence.MISSING:
            return served
        if name in _OF_EVERY_MODULE:
            return PRESENT
        seen = not facts.opaque and not {"*", name} & facts.rebound and module not in facts.registered
        closed = seen and not {"*", name} & set(facts.patched(module))
        return MISSING if closed and starred.presence is Presence.MISSING else OPAQUE

    def _submodule(self, package: Package, module: str, name: str) -> Answer:
        dotted = f"{module}.{name}"
        presence = self.module(dotted)
        if presence is not Presence.PRESENT:
            return Answer(presence=presence)
        return Answer(presence=presence, ref=Ref(kind="module", package=package.root, module=dotted))

    def _starred(self, facts: ModuleFacts, name: str) -> Answer:
        unseen = False
        for target, when in reversed(facts.stars):
            if when is When.TYPING:
                continue
            if self.package(target) is None:
                unseen |= target.partition(".")[0] not in self.absent
                continue
            if not self.may_export(target, name):
                continue
            answer = self.lookup(target, name)
            if answer.presence is Presence.PRESENT:
                return answer
            unseen |= answer.presence is Presence.OPAQUE
        return OPAQUE if unseen else MISSING

    def may_export(self, module: str, name: str) -> bool:
        """Return whether `from module import *` may bring `name`, by the module's `__all__`."""
        facts = self.facts(module)
        table = facts.table("__all__") if facts is not None else None
        if table is None:
            return not name.startswith("_")
        return name in table.entries or table.open or bool(table.spreads)

    def bound(self, module: str, facts: ModuleFacts, name: str) -> Answer | None:
        """Return what the module's own statements bind the name to, None when no statement does at run time."""
        rows = facts.bindings(name)
        live = [b for b in rows if b.when is not When.TYPING and b.kind not in (Bind.ANNOTATION, Bind.DELETE)]
        if not live:
            return None
        deleted = [b.line for b in rows if b.kind is Bind.DELETE]
        if deleted and max(deleted) > max(b.line for b in live):
            return OPAQUE
        settled = [b for b in live if b.when is When.ALWAYS]
        # A later unconditional binding hides what came before it.
        candidates = [b for b in live if not settled or b.line >= settled[-1].line or b.when is not When.ALWAYS]
        ordered = sorted(candidates, key=lambda b: _PREFERENCE[b.when])
        answers = [(b, self.follow(module, name, b)) for b in ordered]
        chosen = _choose(answers)
        if name in facts.rebound and chosen.presence is Presence.PRESENT:
            return Answer(presence=Presence.PRESENT, ref=chosen.ref, instance_of=chosen.instance_of, exact=False)
        return chosen

    def follow(self, module: str, name: str, found: Binding) -> Answer:
        """Return what one binding of `name` in the body of `module` leads to."""
        sure = found.when is When.ALWAYS
        match found.kind:
            case Bind.FUNCTION:
                return Answer(presence=Presence.PRESENT, ref=self._ref("function", module, name))
            case Bind.CLASS:
                return Answer(presence=Presence.PRESENT, ref=self._ref("class", module, name))
            case Bind.MODULE:
                return self._imported(found.source, "", sure=sure)
            case Bind.FROM:
                return self._imported(found.source, found.name, sure=sure)
            case Bind.CONSTANT:
                value = _frozen(found.constant)
                return Answer(
                    presence=Presence.PRESENT, ref=self._ref("value", module, name), constant=value, has_constant=True
                )
            case Bind.ALIAS if found.source.partition(".")[0] != name:
                answer = self.dotted(module, found.source)
                if answer.presence is Presence.PRESENT and answer.ref is not None:
                    return answer
            case Bind.CALL if found.source.partition(".")[0] != name:
                return self._called(module, name, found)
        return Answer(
            presence=Presence.PRESENT,
            ref=self._ref("value", module, name),
            instance_of=self.annotated(module, found.annotation),
            exact=False,
        )

    def _called(self, module: str, name: str, found: Binding) -> Answer:
        """Return the value that a call gives: an instance of a class, or what a function's annotation says."""
        made = self.made_by(module, found.source)
        annotated = self.annotated(module, found.annotation)
        return Answer(
            presence=Presence.PRESENT,
            ref=self._ref("value", module, name),
            instance_of=made.instance_of or annotated,
            exact=made.exact and made.instance_of is not None,
        )

    def made_by(self, module: str, callee: str) -> Answer:
        """Return what a call of the dotted `callee`, as written in `module`, gives: `instance_of` where it is known."""
        target = self.dotted(module, callee).ref
        if target is None:
            return PRESENT
        if target.kind == "class":
            return Answer(presence=Presence.PRESENT, instance_of=target)
        facts = self.facts(target.module)
        functions = facts.functions(target.name) if facts is not None and target.kind == "function" else ()
        if len(functions) != 1 or functions[0].decorators:
            return PRESENT
        made = self.annotated(target.module, functions[0].returns)
        return Answer(presence=Presence.PRESENT, instance_of=made, exact=False)

    def _ref(self, kind: RefKind, module: str, name: str) -> Ref:
        return Ref(kind=kind, package=module.partition(".")[0], module=module, name=name)

    def _imported(self, source: str, name: str, *, sure: bool) -> Answer:
        """Return what an import gives; one that is not guarded has succeeded when the module is there at all."""
        if self.package(source) is None:
            gone = source.partition(".")[0] in self.absent
            if sure:
                return OPAQUE if gone else PRESENT
            return MISSING if gone else OPAQUE
        if name:
            answer = self.lookup(source, name)
        else:
            presence = self.module(source)
            answer = Answer(presence=presence, ref=self._ref("module", source, ""))
        if answer.presence is Presence.PRESENT:
            return answer
        if sure:
            # The importing module fails, or the static view is wrong: neither shows that this name is missing.
            return PRESENT if answer.presence is Presence.OPAQUE else OPAQUE
        return answer if answer.presence is Presence.MISSING else OPAQUE

    def dotted(self, module: str, expression: str) -> Answer:
        """Return what a dotted expression means in the body of `module`; OPAQUE where that is not seen."""
        first, *rest = expression.split(".")
        answer = self.lookup(module, first)
        for part in rest:
            ref = answer.ref
            if ref is None:
                return OPAQUE
            if ref.kind == "module":
                answer = self.lookup(ref.module, part)
            elif ref.kind == "class":
                answer = self.nested(ref, part)
            else:
                return OPAQUE
        return answer

    def nested(self, owner: Ref, name: str) -> Answer:
        """Return the class or method `name` defined in the body of the class `owner` itself, else OPAQUE."""
        facts = self.facts(owner.module)
        qualified = f"{owner.name}.{name}"
        if facts is not None and facts.classes(qualified):
            return Answer(presence=Presence.PRESENT, ref=self._ref("class", owner.module, qualified))
        if facts is not None and facts.functions(qualified):
            ref = Ref(kind="method", package=owner.package, module=owner.module, name=qualified, owner=owner)
            return Answer(presence=Presence.PRESENT, ref=ref)
        return OPAQUE

    def annotated(self, module: str, annotation: str) -> Ref | None:
        """Return the class that an annotation in `module` names, `Optional` and `| None` dropped; else None."""
        name = named_type(annotation)
        ref = self.dotted_hint(module, name).ref if name else None
        return ref if ref is not None and ref.kind == "class" else None

    def dotted_hint(self, module: str, name: str) -> Answer:
        """Return what a name in an annotation means: names imported for type checking only count as well."""
        answer = self.dotted(module, name)
        facts = self.facts(module)
        if answer.presence is Presence.PRESENT or facts is None:
            return answer
        hints = [b for b in facts.bindings(name) if b.when is When.TYPING and b.kind is Bind.FROM]
        return self.lookup(hints[0].source, hints[0].name) if hints else answer


def named_type(annotation: str) -> str:
    """Return the one dotted name that an annotation stands for, "" when it is none or several.

    `Optional[X]`, `X | None`, `Annotated[X, …]`, `Final[X]`, `type`-less generics (`X[int]`) give `X`.
    """
    if not annotation or len(annotation) > _LONGEST_ANNOTATION:
        return ""
    if annotation.replace(".", "").replace("_", "").isalnum():
        return annotation
    try:
        return _named(ast.parse(annotation, mode="eval").body)
    except (SyntaxError, ValueError):
        return ""


def _named(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as inner):
            return named_type(inner)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _named(left)
        case ast.BinOp(left=ast.Constant(value=None), op=ast.BitOr(), right=right):
            return _named(right)
        case ast.Subscript(value=outer, slice=inner):
            match dotted(outer).rpartition(".")[2]:
                case "Optional" | "Final" | "ClassVar" | "InitVar" | "SkipValidation":
                    return _named(inner)
                case "Annotated" if isinstance(inner, ast.Tuple) and inner.elts:
                    return _named(inner.elts[0])
                case "Union" if isinstance(inner, ast.Tuple):
                    real = [e for e in inner.elts if not (isinstance(e, ast.Constant) and e.value is None)]
                    return _named(real[0]) if len(real) == 1 else ""
                case "type" | "Type" | "Callable" | "Literal" | "Awaitable" | "Coroutine":
                    return ""
            return dotted(outer)
    return dotted(node)


def _choose(answers: list[tuple[Binding, Answer]]) -> Answer:
    """Return the one answer for bindings of which each may be the last: what they agree on."""
    present = [(b, a) for b, a in answers if a.presence is Presence.PRESENT]
    if not present:
        gone = all(a.presence is Presence.MISSING for _, a in answers)
        return MISSING if gone else OPAQUE
    if len(answers) == 1:
        binding, answer = answers[0]
        # Only a handler binds it, and nothing says that the handler runs.
        return OPAQUE if binding.when is When.HANDLER else answer
    solid = [a for b, a in present if a.ref is not None and a.ref.kind != "value" and b.when is not When.HANDLER]
    refs = {a.ref for a in solid}
    if len(refs) == 1:
        return Answer(presence=Presence.PRESENT, ref=refs.pop())
    if not refs and len(present) == len(answers) and len({(a.ref, a.constant, a.instance_of) for _, a in present}) == 1:
        return present[0][1]
    return PRESENT


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
