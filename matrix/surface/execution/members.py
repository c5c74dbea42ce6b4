"""Attributes: what `owner.name` is for each kind of value, and what the target lacks."""

from __future__ import annotations

import ast

from packaging.version import Version

from matrix.finding import Kind
from matrix.surface.answer import Answer, Presence, Ref
from matrix.surface.execution.imports import from_answer, own_attribute
from matrix.surface.execution.run import Run
from matrix.surface.execution.values import (
    UNKNOWN,
    ClassValue,
    DictItemsValue,
    DictValue,
    ExternalValue,
    FunctionValue,
    InstanceValue,
    MethodValue,
    ModuleValue,
    RefValue,
    SelfValue,
    SignatureValue,
    SuperValue,
    TypeCheckingValue,
    Value,
    VersionText,
    VersionValue,
    is_constant,
)


def member(run: Run, owner: Value, attr: str, node: ast.Attribute) -> Value:
    """Return the attribute `attr` of a value that is not unknown."""
    match owner:
        case ModuleValue():
            return _module_member(run, owner, attr, node)
        case SelfValue():
            return _self_member(run, owner.cls, attr, node)
        case RefValue() if owner.ref.kind == "class":
            answer = run.world.attribute(owner.ref, attr)
            return _checked(run, answer, owner.ref, attr, node, Kind.ATTRIBUTE_MISSING, instance=False)
        case InstanceValue() if run.profile.is_factory(owner.ref.dotted):
            return UNKNOWN
        case InstanceValue():
            answer = run.world.attribute(owner.ref, attr, instance=True)
            return _checked(
                run, answer, owner.ref, attr, node, Kind.INSTANCE_ATTRIBUTE_MISSING, instance=True, exact=owner.exact
            )
        case ExternalValue(dotted="typing") if attr == "TYPE_CHECKING":
            return TypeCheckingValue()
        case ExternalValue():
            return ExternalValue(f"{owner.dotted}.{attr}")
        case ClassValue():
            return _class_member(run, owner, attr, node)
        case SuperValue():
            return _super_member(run, owner.cls, attr, node)
        case VersionValue():
            return _version_part(run, owner, attr)
        case SignatureValue():
            return owner if attr in ("parameters", "args", "kwonlyargs", "__dict__") else MethodValue(owner, attr)
        case DictValue() | DictItemsValue():
            return MethodValue(owner, attr)
        case RefValue():
            return _signature_of(owner, attr)
        case VersionText() | str() | tuple():
            return MethodValue(owner, attr)
    return UNKNOWN


def _signature_of(owner: RefValue, attr: str) -> Value:
    if attr in ("__code__", "__dataclass_fields__", "__annotations__", "__signature__"):
        return SignatureValue(owner.ref)
    return UNKNOWN


def _module_member(run: Run, owner: ModuleValue, attr: str, node: ast.Attribute) -> Value:
    if run.is_own(owner.name):
        return own_attribute(run, owner.name, attr)
    dotted = f"{owner.name}.{attr}"
    if run.missing_by_assumption(dotted):
        return UNKNOWN
    if attr == "__version__" and "." not in owner.name:
        return run.version_of(owner.name) or UNKNOWN
    answer = run.world.lookup(owner.name, attr)
    if answer.presence is Presence.MISSING:
        if not run.hasattr_guards(node):
            run.report(Kind.ATTRIBUTE_MISSING, dotted, node, "AttributeError")
        return UNKNOWN
    value = from_answer(run, answer)
    return ExternalValue(dotted) if value is UNKNOWN and dotted in run.profile.calls else value


def _checked(
    run: Run,
    answer: Answer,
    ref: Ref,
    attr: str,
    node: ast.Attribute,
    kind: Kind,
    *,
    instance: bool,
    exact: bool = True,
) -> Value:
    if attr in ("__dataclass_fields__", "__annotations__", "model_fields"):
        return SignatureValue(ref)
    if answer.presence is Presence.MISSING:
        if not run.hasattr_guards(node):
            owner = f"{ref.dotted}()" if instance else ref.dotted
            run.report(kind, f"{owner}.{attr}", node, "AttributeError", certain=exact, ref=ref)
        return UNKNOWN
    value = from_answer(run, answer)
    if isinstance(value, RefValue) and value.ref.kind == "method" and not instance:
        return RefValue(value.ref, bound=run.world.needs_no_instance(value.ref))
    return value


def _self_member(run: Run, cls: ClassValue, attr: str, node: ast.Attribute) -> Value:
    lineage = cls.lineage()
    for item in lineage:
        if attr in item.attributes:
            return item.attributes[attr]
        if attr in item.body:
            value = item.body[attr]
            if attr in item.fields and is_constant(value):
                run.defaults[run.subject.text(node)] = bool(value)
                return UNKNOWN
            return _class_value(run, value, item)
    for base in cls.foreign_bases():
        if isinstance(base, RefValue) and base.ref.kind == "class":
            answer = run.world.attribute(base.ref, attr, instance=True)
            if answer.presence is Presence.PRESENT:
                return from_answer(run, answer)
    return UNKNOWN


def _class_member(run: Run, cls: ClassValue, attr: str, node: ast.Attribute) -> Value:
    for item in cls.lineage():
        if attr in item.body:
            return _class_value(run, item.body[attr], item)
    for base in cls.foreign_bases():
        if isinstance(base, RefValue) and base.ref.kind == "class":
            answer = run.world.attribute(base.ref, attr)
            if answer.presence is Presence.PRESENT:
                return from_answer(run, answer)
    return UNKNOWN


def _class_value(run: Run, value: Value, cls: ClassValue) -> Value:
    if isinstance(value, FunctionValue):
        run.touch(value)
        decorators = value.node.decorator_list
        if any(isinstance(item, ast.Name) and item.id == "property" for item in decorators):
            return UNKNOWN
    return value


def _super_member(run: Run, cls: ClassValue, attr: str, node: ast.Attribute) -> Value:
    for item in cls.lineage()[1:]:
        if attr in item.body:
            return _class_value(run, item.body[attr], item)
    foreign = cls.foreign_bases()
    missing: Ref | None = None
    for base in foreign:
        if not isinstance(base, RefValue) or base.ref.kind != "class":
            return UNKNOWN
        answer = run.world.attribute(base.ref, attr, instance=True)
        if answer.presence is not Presence.MISSING:
            return from_answer(run, answer)
        missing = base.ref
    if missing is not None and not attr.startswith("__"):
        run.report(Kind.ATTRIBUTE_MISSING, f"{missing.dotted}.{attr}", node, "AttributeError", ref=missing)
    return UNKNOWN


def _version_part(run: Run, owner: VersionValue, attr: str) -> Value:
    version = owner.version or Version(run.world.version_text(owner.root))
    if attr in ("major", "minor", "micro", "release"):
        return getattr(version, attr)
    if attr in ("base_version", "public"):
        text = str(getattr(version, attr))
        return VersionText(owner.root, text) if owner.root else text
    return UNKNOWN
