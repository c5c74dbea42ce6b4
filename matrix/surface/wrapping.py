"""Decorators: which leave a signature or a class as it is written, and which hide it."""

from __future__ import annotations

from matrix.surface.names import Names

# Decorators outside the world that hand back what they got, or a wrapper that passes every argument on.
_SAME_FUNCTION = frozenset(
    (
        "abstractmethod",
        "abstractproperty",
        "asynccontextmanager",
        "cache",
        "cached_property",
        "classmethod",
        "contextmanager",
        "coroutine",
        "deprecated",
        "disable",
        "enable_grad",
        "final",
        "inference_mode",
        "jit",
        "lru_cache",
        "no_grad",
        "no_type_check",
        "override",
        "overrides",
        "property",
        "staticmethod",
        "unused",
        "wraps",
    )
)
# Decorators outside the world that add nothing to a class but what the surface tier knows of.
_SAME_CLASS = frozenset(
    (
        "dataclass",
        "dataclass_transform",
        "deprecated",
        "final",
        "no_type_check",
        "runtime_checkable",
        "total_ordering",
        "unique",
    )
)
_KEEPING = frozenset(("same", "patched", "kept"))


class Wrapping:
    """Answers whether a decorator keeps what it decorates, by its own source where it is in the world."""

    def __init__(self, names: Names) -> None:
        """Share the lookup; nothing is read yet."""
        self._names = names

    def keeps_signature(self, module: str, decorator: str) -> bool:
        """Return whether a function decorated so in `module` still takes what its `def` says."""
        verdict = self._verdict(module, decorator)
        if verdict is None:
            return decorator.rpartition(".")[2] in _SAME_FUNCTION
        return verdict.removeprefix("factory ") in _KEEPING

    def keeps_class(self, module: str, decorator: str) -> bool:
        """Return whether a class decorated so in `module` is the class as it is written, or a dataclass of it."""
        verdict = self._verdict(module, decorator)
        if verdict is None:
            return decorator.rpartition(".")[2] in _SAME_CLASS
        return verdict.removeprefix("factory ") == "same"

    def _verdict(self, module: str, decorator: str) -> str | None:
        """Return what the decorator's source says, "" when that is not seen, None outside the world."""
        if self._names.package(module) is None or decorator == "?":
            return ""
        ref = self._names.dotted(module, decorator).ref
        if ref is None or ref.kind not in ("function", "method"):
            return None if ref is None else ""
        facts = self._names.facts(ref.module)
        verdicts = {f.wraps for f in facts.functions(ref.name)} if facts is not None else {""}
        return verdicts.pop() if len(verdicts) == 1 else ""
