"""Bases outside the world whose attributes are known, because they belong to Python itself."""

from __future__ import annotations

import functools
import importlib

# Light modules of the standard library whose classes other packages inherit from; importing them runs nothing else.
_MODULES = frozenset(
    (
        "abc",
        "argparse",
        "builtins",
        "collections",
        "collections.abc",
        "contextlib",
        "enum",
        "io",
        "json",
        "logging",
        "queue",
        "string",
        "threading",
        "types",
        "typing",
    )
)
# What a special base turns a class into; its own attributes are those of the class named.
_STANDS_FOR = {
    "typing.NamedTuple": "builtins.tuple",
    "typing.TypedDict": "builtins.dict",
    "typing_extensions.NamedTuple": "builtins.tuple",
    "typing_extensions.TypedDict": "builtins.dict",
    "typing_extensions.Protocol": "typing.Protocol",
    "typing_extensions.Generic": "typing.Generic",
}
_NAMED_TUPLE = frozenset(("_fields", "_field_defaults", "_make", "_asdict", "_replace"))


@functools.cache
def attributes(base: str) -> frozenset[str] | None:
    """Return the attributes that a class gets from a base such as `enum.Enum`; None when the base is not known."""
    module, _, name = _STANDS_FOR.get(base, base).rpartition(".")
    if module not in _MODULES:
        return None
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, type):
        return None
    extra = _NAMED_TUPLE if base.endswith(".NamedTuple") else frozenset()
    # `name` and `value` of an enum member are descriptors that `dir` of the class leaves out.
    extra |= frozenset(("name", "value", "_name_", "_value_")) if module == "enum" else frozenset()
    return frozenset(dir(found)) | frozenset(dir(type(found))) | frozenset(dir(object)) | extra


@functools.cache
def is_builtin(name: str) -> bool:
    """Return whether a bare name means a builtin class."""
    return isinstance(getattr(importlib.import_module("builtins"), name, None), type)
