"""Calls whose meaning is known without the target: builtins, `inspect`, `importlib`, version readers, `mock.patch`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Final

from packaging.version import InvalidVersion, Version

from matrix.finding import Kind
from matrix.surface.answer import Presence
from matrix.surface.execution import engine
from matrix.surface.execution.assignment import set_attribute
from matrix.surface.execution.gates import presence_truth
from matrix.surface.execution.imports import dotted_target, from_answer, import_module, own_attribute
from matrix.surface.execution.run import Run
from matrix.surface.execution.state import Raised
from matrix.surface.execution.syntax import dotted_text
from matrix.surface.execution.values import (
    STRUCTURED,
    UNKNOWN,
    BuiltinValue,
    ClassValue,
    DictItemsValue,
    DictValue,
    Env,
    ExternalValue,
    FunctionValue,
    InstanceValue,
    MethodValue,
    ModuleValue,
    PartialValue,
    RefValue,
    SelfValue,
    SignatureValue,
    SuperValue,
    Value,
    VersionText,
    VersionValue,
    is_constant,
)

Arguments = list[Value]
Keywords = dict[str, Value]
_Rule = Callable[[Run, ast.Call, Arguments, Keywords], Value]

_TEXT_METHODS: Final = frozenset(
    [
        "startswith",
        "endswith",
        "split",
        "rsplit",
        "lower",
        "upper",
        "strip",
        "lstrip",
        "rstrip",
        "replace",
        "partition",
        "removeprefix",
        "removesuffix",
        "join",
    ]
)


def known_call(run: Run, function: Value, node: ast.Call, args: Arguments, keywords: Keywords, env: Env) -> Value:
    """Return what a call of a known helper gives, `UNKNOWN` for every other call."""
    if isinstance(function, BuiltinValue):
        rule = _BUILTINS.get(function.name)
        return rule(run, node, args, keywords) if rule is not None else UNKNOWN
    if isinstance(function, MethodValue):
        return _method(run, function, args)
    if isinstance(function, ExternalValue):
        return _external(run, function.dotted, node, args, keywords)
    if isinstance(function, RefValue):
        return run.profile.calls.get(function.ref.dotted, UNKNOWN)
    if isinstance(function, SelfValue | InstanceValue | ModuleValue):
        return UNKNOWN
    return UNKNOWN


def _external(run: Run, dotted: str, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if dotted in run.profile.calls:
        return run.profile.calls[dotted]
    rule = _EXTERNALS.get(dotted)
    if rule is not None:
        return rule(run, node, args, keywords)
    if dotted.startswith(("unittest.mock.patch", "mock.patch")):
        return _patch(run, node, args, keywords)
    return UNKNOWN


# ------------------------------------------------------------------------------------------------------ builtins
def _hasattr(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) != 2 or not isinstance(args[1], str):
        return UNKNOWN
    owner, name = args[0], str(args[1])
    if isinstance(owner, ModuleValue) and run.is_own(owner.name):
        return True if own_attribute(run, owner.name, name) is not UNKNOWN else UNKNOWN
    dotted = owner.name if isinstance(owner, ModuleValue) else owner.dotted if isinstance(owner, ExternalValue) else ""
    if dotted and run.missing_by_assumption(f"{dotted}.{name}"):
        return False
    if isinstance(owner, ModuleValue):
        return presence_truth(run.world.lookup(owner.name, name).presence)
    if isinstance(owner, RefValue) and owner.ref.kind == "class":
        return presence_truth(run.world.attribute(owner.ref, name).presence)
    if isinstance(owner, InstanceValue):
        return presence_truth(run.world.attribute(owner.ref, name, instance=True).presence, exact=owner.exact)
    return UNKNOWN


def _getattr(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) < 2 or not isinstance(args[1], str):
        return UNKNOWN
    owner, name = args[0], str(args[1])
    if isinstance(owner, ModuleValue) and run.is_own(owner.name):
        return own_attribute(run, owner.name, name)
    if isinstance(owner, ModuleValue) and run.missing_by_assumption(f"{owner.name}.{name}"):
        return args[2] if len(args) > 2 else UNKNOWN
    symbol, exact = "", True
    if isinstance(owner, ModuleValue):
        answer, symbol = run.world.lookup(owner.name, name), f"{owner.name}.{name}"
        if name == "__version__" and "." not in owner.name:
            return run.version_of(owner.name) or UNKNOWN
    elif isinstance(owner, RefValue) and owner.ref.kind == "class":
        answer, symbol = run.world.attribute(owner.ref, name), f"{owner.ref.dotted}.{name}"
    elif isinstance(owner, InstanceValue):
        answer, exact = run.world.attribute(owner.ref, name, instance=True), owner.exact
        symbol = f"{owner.ref.dotted}().{name}"
    else:
        return UNKNOWN
    if answer.presence is Presence.MISSING:
        if len(args) > 2:
            return args[2] if exact else UNKNOWN
        run.report(Kind.ATTRIBUTE_MISSING, symbol, node, "AttributeError", certain=exact)
        return UNKNOWN
    return from_answer(run, answer)


def _setattr(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 3 and isinstance(args[1], str):
        set_attribute(run, args[0], str(args[1]), args[2], node)
    return None


def _isinstance(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) != 2:
        return UNKNOWN
    value, kind = args
    if kind == BuiltinValue("type"):
        if isinstance(value, RefValue) and value.ref.kind in ("class", "function", "method"):
            return value.ref.kind == "class"
        if isinstance(value, ClassValue | FunctionValue):
            return isinstance(value, ClassValue)
        return False if value is None else UNKNOWN
    if kind == BuiltinValue("str") and is_constant(value):
        return isinstance(value, str)
    return UNKNOWN


def _callable(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 1 and isinstance(args[0], RefValue | ClassValue | FunctionValue | BuiltinValue):
        return True
    return False if args == [None] else UNKNOWN


def _dict(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 1 and isinstance(args[0], SignatureValue):
        return args[0]
    if args and not isinstance(args[0], DictValue):
        return UNKNOWN
    starred = [keyword for keyword in node.keywords if keyword.arg is None]
    made = DictValue(complete=not starred)
    if args and isinstance(args[0], DictValue):
        made.absorb(args[0])
    for keyword in node.keywords:
        if keyword.arg is not None:
            made.items[keyword.arg] = keywords[keyword.arg]
            made.nodes[keyword.arg] = keyword
    return made


def _gather(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    """Return what `set(x)`, `list(x)`, `tuple(x)` hold."""
    if len(args) == 1 and isinstance(args[0], SignatureValue | tuple):
        return args[0]
    if len(args) == 1 and isinstance(args[0], DictItemsValue) and args[0].view == "keys":
        return args[0].owner
    return UNKNOWN


def _str(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 1:
        if isinstance(args[0], VersionText):
            return args[0]
        if isinstance(args[0], VersionValue):
            version = args[0].version
            return VersionText(args[0].root) if version is None else str(version)
        if isinstance(args[0], str | int) and not isinstance(args[0], bool):
            return args[0] if isinstance(args[0], str) else str(args[0])
    return UNKNOWN


def _number(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 1 and isinstance(args[0], str | int):
        try:
            return int(args[0])
        except ValueError:
            return UNKNOWN
    return UNKNOWN


def _map(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) == 2 and args[0] == BuiltinValue("int") and isinstance(args[1], tuple):
        numbers = [_number(run, node, [item], {}) for item in args[1]]
        return UNKNOWN if any(number is UNKNOWN for number in numbers) else tuple(numbers)
    return UNKNOWN


def _super(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    return SuperValue(run.classes[-1]) if run.classes else UNKNOWN


def _bool(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    return bool(args[0]) if len(args) == 1 and is_constant(args[0]) else UNKNOWN


_BUILTINS: Final[Mapping[str, _Rule]] = {
    "hasattr": _hasattr,
    "getattr": _getattr,
    "setattr": _setattr,
    "isinstance": _isinstance,
    "callable": _callable,
    "dict": _dict,
    "set": _gather,
    "list": _gather,
    "tuple": _gather,
    "frozenset": _gather,
    "str": _str,
    "int": _number,
    "map": _map,
    "super": _super,
    "bool": _bool,
}


# ----------------------------------------------------------------------------------------- methods of known values
def _method(run: Run, function: MethodValue, args: Arguments) -> Value:
    owner, name = function.owner, function.name
    if isinstance(owner, SignatureValue):
        return owner if name in ("keys", "copy") else UNKNOWN
    if isinstance(owner, DictValue) and name in ("items", "keys", "values"):
        return DictItemsValue(owner, name)
    if name not in _TEXT_METHODS or not all(is_constant(arg) for arg in args):
        return UNKNOWN
    if isinstance(owner, VersionText):
        if owner.text is None and name in ("startswith", "endswith"):
            run.version_reads += 1
            run.version_root = owner.root
            return run.world.tests(owner.root, name, tuple(args))
        result = _text_method(run.text_of(owner), name, args)
        return VersionText(owner.root, result) if isinstance(result, str) else result
    return _text_method(owner, name, args) if isinstance(owner, str) else UNKNOWN


def _text_method(owner: str, name: str, args: Arguments) -> Value:
    try:
        result: object = getattr(owner, name)(*args)
    except (TypeError, ValueError):
        return UNKNOWN
    return tuple(result) if isinstance(result, list) else result


# ---------------------------------------------------------------------------------------------- other packages
def _parse_version(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if len(args) != 1:
        return UNKNOWN
    given = args[0]
    if isinstance(given, VersionValue):
        return given
    if isinstance(given, VersionText) and given.text is None:
        return VersionValue(None, given.root)
    text = given.text if isinstance(given, VersionText) else given
    if not isinstance(text, str):
        return UNKNOWN
    try:
        return VersionValue(Version(text), given.root if isinstance(given, VersionText) else "")
    except InvalidVersion:
        return UNKNOWN


def _read_version(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    name = args[0] if args else keywords.get("distribution_name", UNKNOWN)
    if not isinstance(name, str):
        return UNKNOWN
    found = run.version_of(name)
    if found is not None:
        return found
    if run.absent(name.replace("-", "_")):
        if run.is_caught("PackageNotFoundError"):
            raise Raised("PackageNotFoundError", None)
        return UNKNOWN
    return UNKNOWN


def _find_spec(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if not args or not isinstance(args[0], str):
        return UNKNOWN
    name = str(args[0])
    if run.absent(name):
        # The parent of a dotted name is imported, and that raises.
        if "." in name and run.is_caught("ModuleNotFoundError"):
            raise Raised("ModuleNotFoundError", None)
        return None
    if run.is_own(name):
        return ModuleValue(name) if run.subject.exists(name) else None
    if not run.world.covers(name):
        return UNKNOWN
    presence = run.world.module(name)
    if presence is Presence.MISSING:
        return None
    return ModuleValue(name) if presence is Presence.PRESENT else UNKNOWN


def _import(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    name = args[0] if args else keywords.get("name", UNKNOWN)
    return import_module(run, str(name), node) if isinstance(name, str) and not name.startswith(".") else UNKNOWN


def _dotted(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if args and isinstance(args[0], str) and dotted_text(args[0]):
        return dotted_target(run, str(args[0]), node, patch=False)
    return UNKNOWN


def _patch(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    """Check what `mock.patch` and `mock.patch.object` would replace; `create=True` accepts a missing one."""
    if keywords.get("create") is True or not args:
        return UNKNOWN
    if isinstance(args[0], str):
        if dotted_text(args[0]):
            dotted_target(run, str(args[0]), node, patch=True)
        return UNKNOWN
    if len(args) > 1 and isinstance(args[1], str):
        owner, name = args[0], str(args[1])
        if isinstance(owner, ModuleValue) and run.world.covers(owner.name):
            presence, symbol = run.world.lookup(owner.name, name).presence, f"{owner.name}.{name}"
        elif isinstance(owner, RefValue) and owner.ref.kind == "class":
            presence, symbol = run.world.attribute(owner.ref, name).presence, f"{owner.ref.dotted}.{name}"
        else:
            return UNKNOWN
        if presence is Presence.MISSING:
            run.report(Kind.PATCH_TARGET_MISSING, symbol, node, "AttributeError")
    return UNKNOWN


def _signature(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    return SignatureValue(args[0].ref) if args and isinstance(args[0], RefValue) else UNKNOWN


def _partial(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    complete = not any(isinstance(arg, ast.Starred) for arg in node.args) and all(k.arg for k in node.keywords)
    if args and isinstance(args[0], RefValue) and complete:
        return PartialValue(args[0], len(args) - 1, tuple(keywords))
    return UNKNOWN


def _environment(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    """Return what reading a variable gives in a clean environment: the default."""
    default = args[1] if len(args) > 1 else keywords.get("default")
    return default if default is None or is_constant(default) else UNKNOWN


def _set_environment(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    if args and isinstance(args[0], str):
        engine.check_environment(run, str(args[0]), node)
    if args and isinstance(args[0], DictValue):
        for name, where in args[0].nodes.items():
            engine.check_environment(run, name, where)
    return UNKNOWN


def _same(run: Run, node: ast.Call, args: Arguments, keywords: Keywords) -> Value:
    return args[0] if args and isinstance(args[0], STRUCTURED) else UNKNOWN


_EXTERNALS: Final[Mapping[str, _Rule]] = {
    "packaging.version.parse": _parse_version,
    "packaging.version.Version": _parse_version,
    "pkg_resources.parse_version": _parse_version,
    "importlib.metadata.version": _read_version,
    "importlib_metadata.version": _read_version,
    "importlib.util.find_spec": _find_spec,
    "importlib.import_module": _import,
    "pkgutil.resolve_name": _dotted,
    "inspect.signature": _signature,
    "inspect.getfullargspec": _signature,
    "dataclasses.fields": _signature,
    "functools.partial": _partial,
    "functools.wraps": _same,
    "os.getenv": _environment,
    "os.environ.get": _environment,
    "os.environ.setdefault": _set_environment,
    "os.environ.update": _set_environment,
    "os.putenv": _set_environment,
}
