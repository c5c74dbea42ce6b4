"""What a release of verl can score, and how: read from its own code, as syntax; nothing of it is run.

`default_compute_score` (`_default_compute_score` in 0.2 and 0.3, `_select_rm_score_fn` of main_ppo in 0.1) is a chain
of tests of `data_source`; what a branch imports or returns says whose `compute_score` judges. GSM8K's own is
`verl/utils/reward_score/gsm8k.py`: its patterns, what it takes out of a match, and how much of a response it looks at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

REWARDS = "verl/utils/reward_score/__init__.py"
MAIN = "verl/trainer/main_ppo.py"
GSM8K = "verl/utils/reward_score/gsm8k.py"
READER = "verl/utils/dataset/rl_dataset.py"
_CHOOSERS = ("default_compute_score", "_default_compute_score", "_select_rm_score_fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gsm8k:
    """How GSM8K answers are scored: by equality of text, after `removed` is taken out of what `strict` matched.

    `clip` is how many of a response's last characters are looked at, 0 for all; `last` says that the last match counts
    (up to 0.4.0 it was the first).
    """

    strict: str
    flexible: str
    removed: tuple[str, ...]
    clip: int
    last: bool
    method: str

    def reachable(self, truth: str) -> bool:
        """Return whether any response can be scored as right: the text is what an answer looks like once extracted.

        True exactly if `truth` holds nothing that is removed and the pattern takes the whole of it from `#### truth`.
        """
        match = re.search(self.strict, f"#### {truth}")
        return match is not None and match[1] == truth and not any(part in truth for part in self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """What one release scores: names and prefixes of `data_source`, each with the module of its scorer.

    `opaque` holds tests that could not be read; `null_extra_info` says that a null `extra_info` is read without error;
    `suffixes` are the file endings that the release takes, empty where it takes any as parquet.
    """

    version: str
    names: dict[str, str]
    prefixes: dict[str, str]
    opaque: tuple[str, ...] = ()
    gsm8k: Gsm8k | None = None
    null_extra_info: bool = True
    suffixes: tuple[str, ...] = ()

    def module(self, source: str) -> str | None:
        """Return whose `compute_score` judges this `data_source`, None where the release raises NotImplementedError."""
        if source in self.names:
            return self.names[source]
        return next((module for prefix, module in self.prefixes.items() if source.startswith(prefix)), None)


def read_scorer(version: str, read: Callable[[str], str | None]) -> Scorer:
    """Return what the release scores; `read` gives the text of one of its files, None where it has none of that name.

    Raises ValueError where the code is not of a shape that any known release has.
    """
    chain = next(_choosers(read), None)
    if chain is None:
        raise ValueError(f"verl {version} has no function that chooses a scorer by data_source")
    names: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    opaque: list[str] = []
    for test, body in _branches(chain):
        module = _module(body)
        for kind, word in _tested(test):
            match kind:
                case "name":
                    names.setdefault(word, module)
                case "prefix":
                    prefixes.setdefault(word, module)
                case _:
                    opaque.append(word)
    reader = read(READER) or ""
    suffixes = tuple(dict.fromkeys(re.findall(r"\.endswith\(\s*[\"'](\.\w+)[\"']", reader)))
    return Scorer(
        version=version,
        names=names,
        prefixes=prefixes,
        opaque=tuple(opaque),
        gsm8k=_gsm8k(read(GSM8K)),
        null_extra_info=bool(re.search(r"row_dict\[[\"']extra_info[\"']\] is None", reader)),
        suffixes=suffixes if ".parquet" in suffixes else (),
    )


def _choosers(read: Callable[[str], str | None]) -> Iterator[ast.FunctionDef]:
    for path in (REWARDS, MAIN):
        text = read(path)
        for node in ast.walk(ast.parse(text)) if text else ():
            if isinstance(node, ast.FunctionDef) and node.name in _CHOOSERS and any(_branches(node)):
                yield node


def _branches(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """Yield test and body of each branch of the first chain of ifs that asks for `data_source`."""
    for statement in function.body:
        if isinstance(statement, ast.If) and _asks(statement.test):
            current: ast.stmt = statement
            while isinstance(current, ast.If):
                yield current.test, current.body
                if len(current.orelse) != 1:
                    return
                current = current.orelse[0]
            return


def _asks(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "data_source" for node in ast.walk(test))


def _tested(test: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield what the test is true for: (`name` or `prefix`, text), or (`opaque`, its source)."""
    match test:
        case ast.BoolOp(op=ast.Or(), values=values):
            for value in values:
                yield from _tested(value)
        case ast.Compare(left=ast.Name(id="data_source"), ops=[ast.Eq()], comparators=[ast.Constant(value=str(text))]):
            yield "name", text
        case ast.Compare(
            left=ast.Name(id="data_source"), ops=[ast.In()], comparators=[ast.List() | ast.Tuple() as many]
        ):
            for item in many.elts:
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    yield "name", item.value
                else:
                    yield "opaque", ast.unparse(item)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="data_source"), attr="startswith"),
            args=[ast.Constant(value=str(text))],
        ):
            yield "prefix", text
        case _:
            yield "opaque", ast.unparse(test)


def _module(body: list[ast.stmt]) -> str:
    """Return the module whose function judges in this branch, "" where that cannot be seen."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.ImportFrom):
                return node.names[0].name
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Attribute):
                return ast.unparse(node.value.value)
    return ""


def _gsm8k(text: str | None) -> Gsm8k | None:
    """Return GSM8K's rule as its module states it, None where it is not of the known shape."""
    tree = ast.parse(text) if text else None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)} if tree else {}
    if tree is None or not {"extract_solution", "compute_score"} <= functions.keys():
        return None
    patterns: list[tuple[str, str]] = []
    removed: list[str] = []
    for node in ast.walk(functions["extract_solution"]):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr="search" | "findall" as how),
                args=[ast.Constant(value=str(pattern)), _],
            ):
                patterns.append((how, pattern))
            case ast.Call(
                func=ast.Attribute(attr="replace"), args=[ast.Constant(value=str(old)), ast.Constant(value="")]
            ):
                removed.append(old)
    strict = next(((how, pattern) for how, pattern in patterns if "####" in pattern), None)
    flexible = next((pattern for _, pattern in patterns if "####" not in pattern), None)
    if strict is None or flexible is None:
        return None
    clip = next(
        (
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, int)
            and "CLIP" in ast.unparse(node.targets[0])
        ),
        0,
    )
    return Gsm8k(
        strict=strict[1],
        flexible=flexible,
        removed=tuple(sorted(set(removed))),
        clip=clip,
        last=strict[0] == "findall",
        method=_method(functions["compute_score"]),
    )


def _method(function: ast.FunctionDef) -> str:
    """Return the default of the parameter `method`."""
    arguments = function.args.args
    defaults = dict(zip([item.arg for item in arguments[::-1]], function.args.defaults[::-1], strict=False))
    default = defaults.get("method")
    return default.value if isinstance(default, ast.Constant) and isinstance(default.value, str) else ""
