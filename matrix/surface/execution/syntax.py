"""Facts that the syntax alone tells, kept per node: they do not depend on what the code is executed against."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

_ENVIRONMENTAL: Final = re.compile(
    r"version|_ver\b|available|hasattr|getattr|callable|signature|parameters|issubclass|isinstance|environ|getenv"
    r"|is_npu|is_cuda|support|__name__|sys\.|compat|installed|find_spec| is None| is not None|locals\(\)|globals\(\)",
    re.IGNORECASE,
)
_VERSION: Final = re.compile(r"version|VERSION|_ver\b")
_MODEL_CLASS: Final = re.compile(r"For(CausalLM|ConditionalGeneration)\Z|LMHeadModel\Z")
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """What holds for a whole module.

    `future_annotations`: annotations are not evaluated. `has_getattr`: it defines a module `__getattr__`. `dynamic`:
    it binds names in a way that cannot be read (`globals()[…] = …`), or does not parse.
    """

    future_annotations: bool = False
    has_getattr: bool = False
    dynamic: bool = False


def module_facts(tree: ast.Module) -> ModuleFacts:
    """Return the facts of a module's tree."""
    future = getter = dynamic = False
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future = future or any(alias.name == "annotations" for alias in node.names)
        elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            getter = True
        elif "globals()" in _head(node):
            dynamic = True
    return ModuleFacts(future_annotations=future, has_getattr=getter, dynamic=dynamic)


def _head(node: ast.stmt) -> str:
    """Return the text of what a statement assigns to or calls; "" for others."""
    if isinstance(node, ast.Assign):
        return " ".join(ast.unparse(target) for target in node.targets if isinstance(target, ast.Subscript))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func)
    return ""


def bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that these statements may bind, in whichever branch."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import():
                yield from ((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
            case ast.ImportFrom():
                yield from ("*" if alias.name == "*" else alias.asname or alias.name for alias in node.names)
            case ast.Assign():
                for target in node.targets:
                    yield from target_names(target)
            case ast.AnnAssign() | ast.AugAssign():
                yield from target_names(node.target)
            case ast.For() | ast.AsyncFor():
                yield from target_names(node.target)
                yield from bound_names([*node.body, *node.orelse])
            case ast.If() | ast.While():
                yield from bound_names([*node.body, *node.orelse])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        yield from target_names(item.optional_vars)
                yield from bound_names(node.body)
            case ast.Try():
                yield from bound_names([*node.body, *node.orelse, *node.finalbody])
                for handler in node.handlers:
                    yield from bound_names(handler.body)
            case ast.Match():
                for case in node.cases:
                    yield from bound_names(case.body)


def target_names(target: ast.expr) -> Iterator[str]:
    """Yield the plain names that an assignment target binds."""
    match target:
        case ast.Name():
            yield target.id
        case ast.Tuple() | ast.List():
            for item in target.elts:
                yield from target_names(item)
        case ast.Starred():
            yield from target_names(target.value)


@dataclass(eq=False)
class Condition:
    """A test expression and what its text says; kept per node by the subject."""

    node: ast.expr

    @cached_property
    def text(self) -> str:
        """Return the source text on one line."""
        return " ".join(ast.unparse(self.node).split())

    @cached_property
    def environmental(self) -> bool:
        """Return whether it asks what is installed or what a thing is, rather than how the user configured the run."""
        return _ENVIRONMENTAL.search(self.text) is not None

    @cached_property
    def versioned(self) -> bool:
        """Return whether it speaks of a version."""
        return _VERSION.search(self.text) is not None

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Return the Hugging Face models that it asks for, by type (`config.model_type in ("a", "b")`) or class."""
        return tuple(
            item.value
            for part in ast.walk(self.node)
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq | ast.In)
            for item in ast.walk(part.comparators[0])
            if isinstance(item, ast.Constant)
            and isinstance(item.value, str)
            and (_asks_for_type(part.left) or _MODEL_CLASS.search(item.value))
        )

    @cached_property
    def hasattrs(self) -> tuple[tuple[str, str], ...]:
        """Return the `(object text, name)` pairs of the `hasattr` calls in it."""
        return tuple(
            (ast.unparse(call.args[0]), call.args[1].value)
            for call in ast.walk(self.node)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "hasattr"
            and len(call.args) == 2
            and isinstance(call.args[1], ast.Constant)
            and isinstance(call.args[1].value, str)
        )


def case_tests(node: ast.Match) -> list[ast.expr]:
    """Return for each case the condition that it stands for, its subject alone where a pattern is no plain value."""
    tests: list[ast.expr] = []
    before: list[ast.expr] = []
    for case in node.cases:
        patterns = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
        values = [pattern.value for pattern in patterns if isinstance(pattern, ast.MatchValue)]
        catches_all = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
        if catches_all and before:
            tests.append(ast.Compare(node.subject, [ast.NotIn()], [ast.Tuple(list(before))]))
        elif len(values) != len(patterns):
            tests.append(node.subject)
        elif len(values) == 1:
            tests.append(ast.Compare(node.subject, [ast.Eq()], values))
        else:
            tests.append(ast.Compare(node.subject, [ast.In()], [ast.Tuple(values)]))
        before += values
    return tests


def dataclass_fields(node: ast.ClassDef) -> frozenset[str]:
    """Return the fields that a class declares in its own body where it is a dataclass, else none."""
    if not any(last_name(item) == "dataclass" for item in node.decorator_list):
        return frozenset()
    declared = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
    return frozenset(target.id for target in declared if isinstance(target, ast.Name))


def dotted_text(text: str) -> bool:
    """Return whether a string is a dotted name, e.g. `vllm.lora.models`."""
    return len(text) < 200 and _DOTTED.match(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """What the syntax of a function tells.

    `inlinable`: a call of it can be followed for its value. `flags`: the parameters whose keys become command-line
    flags. `static` and `plain` speak of its decorators: a static method; none that changes what a call does.
    """

    inlinable: bool
    flags: frozenset[str]
    static: bool
    plain: bool
    overrides: bool


_PLAIN_DECORATORS: Final = frozenset(
    {"staticmethod", "classmethod", "cache", "lru_cache", "cached_property", "wraps", "override"}
)


def function_facts(node: Function) -> FunctionFacts:
    """Return the facts about one function."""
    names = [last_name(decorator) for decorator in node.decorator_list]
    return FunctionFacts(
        inlinable=is_inlinable(node),
        flags=flag_parameters(node),
        static="staticmethod" in names,
        plain=all(name in _PLAIN_DECORATORS for name in names),
        overrides="override" in names,
    )


def _asks_for_type(node: ast.expr) -> bool:
    """Return whether it is the `model_type` of a model's own configuration; that of verl's means something else."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "model_type"
        and last_name(node.value) in ("config", "hf_config")
    )


def last_name(node: ast.expr) -> str:
    """Return the last part of the name that an expression calls or spells, "" for anything else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_inlinable(node: Function) -> bool:
    """Return whether calling this function can be followed: short, synchronous, no generator, returns something."""
    if isinstance(node, ast.AsyncFunctionDef) or len(node.body) > 20:
        return False
    returns = False
    todo: list[ast.AST] = list(node.body)
    while todo:
        item = todo.pop()
        if isinstance(item, ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        returns = returns or (isinstance(item, ast.Return) and item.value is not None)
        todo.extend(ast.iter_child_nodes(item))
    return returns


def flag_parameters(node: Function) -> frozenset[str]:
    """Return the parameters whose keys this function turns into command-line flags (`f"--{key}"` in a loop)."""
    names = {arg.arg for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    if not names:
        return frozenset()
    found = set()
    for statement in node.body:
        for loop in ast.walk(statement):
            if isinstance(loop, ast.For) and makes_flags(loop):
                found.add(_iterated_items(loop.iter))
    return frozenset(found & names)


def _iterated_items(node: ast.expr) -> str:
    """Return `d` of `d.items()` or `d.keys()`, else ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "keys"):
        return node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    return ""


def makes_flags(loop: ast.For) -> bool:
    """Return whether the body of a loop builds a string of the form `f"--{…}"`."""
    return any(
        isinstance(node, ast.JoinedStr)
        and len(node.values) == 2
        and isinstance(node.values[0], ast.Constant)
        and node.values[0].value == "--"
        for statement in loop.body
        for node in ast.walk(statement)
    )
