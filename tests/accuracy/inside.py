"""What runs inside a measured environment: imports verl's modules and reports, standard library only.

``tree OUT`` imports every verl module, ``one OUT MODULE`` a single one in this process, ``uses OUT`` the conditional
import statements of the stack, ``about OUT`` describes the environment. Each appends JSON lines to ``OUT``.

``tree`` forks along the package hierarchy: the process that imported ``verl.workers`` forks one child for each of its
members. ``import verl.workers.x`` executes ``verl`` and ``verl.workers`` first in any case, so a child starts from the
state that a fresh process would have reached, and no sibling can hide or cause a failure.
"""

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
MESSAGE_CHARS = 300
AXES = ("verl", "vllm", "torch", "transformers", "ray", "tensordict", "flash-attn", "numpy")
ROOTS = ("vllm", "transformers", "torch", "ray", "tensordict", "flash_attn")
SITE = sysconfig.get_paths()["purelib"]
STDLIB = sysconfig.get_paths()["stdlib"]
RAISED = 3
Record = dict[str, Any]


def append(out: Path, record: Record) -> None:
    """Appends one line with one write, so that a killed child never leaves half a line for its parent."""
    with out.open("ab") as stream:
        stream.write((json.dumps(record, sort_keys=True) + "\n").encode())


def relative(text: str) -> str:
    """The text without the places that differ between machines."""
    places = {f"{SITE}/": "", f"{STDLIB}/": "<stdlib>/", sys.prefix: "<env>", sys.base_prefix: "<python>"}
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def frames(error: BaseException) -> tuple[str | None, str | None]:
    """The innermost ``file:line`` inside verl, and inside any installed package, where the error passed."""
    inside_verl = inside_any = None
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file.startswith(SITE + "/"):
            inside_any = f"{relative(file)}:{step.tb_lineno}"
            if inside_any.startswith("verl/"):
                inside_verl = inside_any
        step = step.tb_next
    return inside_verl, inside_any


def describe(error: BaseException) -> Record:
    """Type, message and innermost frames of an error."""
    verl_frame, frame = frames(error)
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = relative(str(error))[:MESSAGE_CHARS]
    return {"exception": name, "message": message, "verl_frame": verl_frame, "frame": frame}


def failure(error: BaseException) -> Record:
    """A ``raises`` outcome; ``causes`` holds the errors it was raised from, nearest first."""
    causes: list[Record] = []
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while inner is not None and len(causes) < 8:
        causes.append(describe(inner))
        inner = inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__)
    return {"outcome": "raises", **describe(error), "causes": causes}


def attempt(action: Callable[[], object]) -> Record:
    """The outcome of an action; after TIMEOUT_S the default action of SIGALRM ends the process, even inside C code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(TIMEOUT_S)
    start = time.monotonic()
    try:
        action()
        result: Record = {"outcome": "ok"}
    except BaseException as error:  # a module may raise SystemExit, pytest.skip.Exception...: all are outcomes here
        result = failure(error)
    signal.alarm(0)
    return result | {"seconds": round(time.monotonic() - start, 2)}


def ended(status: int) -> Record | None:
    """The outcome of a child that could not report itself, else None."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {"outcome": "timeout" if number == signal.SIGALRM else "crash", "message": signal.Signals(number).name}
    code = os.WEXITSTATUS(status)
    return None if code in (0, RAISED) else {"outcome": "crash", "message": f"exit status {code}"}


def in_child(job: Callable[[], int]) -> int:
    """The wait status of a job run in a forked child, which leaves without running exit handlers."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        code = job()
    finally:
        os._exit(code)


def members(package: Path) -> Iterator[tuple[str, Path | None]]:
    """The direct members of a package directory: name, and the directory where it is a package."""
    for path in sorted(package.iterdir()):
        if path.is_dir() and path.name.isidentifier() and any(path.rglob("*.py")):
            yield path.name, path
        elif path.suffix == ".py" and path.stem.isidentifier() and path.stem not in ("__init__", "__main__"):
            yield path.stem, None


def below(module: str, package: Path | None) -> Iterator[str]:
    """Every module under a package, by name."""
    for name, folder in members(package) if package else ():
        yield f"{module}.{name}"
        yield from below(f"{module}.{name}", folder)


def visit(out: Path, module: str, package: Path | None) -> int:
    """Imports a module in this process, then its members in children of this process."""
    result = attempt(lambda: importlib.import_module(module))
    append(out, {"entry": module, "method": "fork", **result})
    if result["outcome"] != "ok":
        for name in below(module, package):  # Python imports the failing package first: same error, not run again
            append(out, {"entry": name, "method": "inherited", **result, "seconds": 0.0})
        return RAISED
    for name, folder in members(package) if package else ():
        child = f"{module}.{name}"
        lost = ended(in_child(partial(visit, out, child, folder)))
        if lost:
            append(out, {"entry": child, "method": "fork", **lost})
    return 0


def branches(node: ast.Try | ast.If) -> Iterator[tuple[str, list[ast.AST]]]:
    """The guarded parts of a statement: what guards them, and their nodes."""
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)[:120]
        yield f"if {test}", [*node.body]
        yield f"if not ({test})", [*node.orelse]
    else:
        caught = ", ".join(ast.unparse(handler.type) if handler.type else "*" for handler in node.handlers)
        yield f"try: {caught}", [*node.body]
        yield "except", [*node.handlers, *node.orelse, *node.finalbody]


def stack_root(node: ast.Import | ast.ImportFrom) -> str | None:
    """The package of the stack that an absolute import names, or None."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""] if not node.level else []
    else:
        names = [alias.name for alias in node.names]
    return next((root for name in names if (root := name.partition(".")[0]) in ROOTS), None)


def conditional_imports(node: ast.AST, function: str = "", guards: tuple[str, ...] = ()) -> Iterator[Record]:
    """The imports of the stack under a module's node that do not run, or may fail, when the module is imported."""
    for child in ast.iter_child_nodes(node):
        yield from conditional_import(child, function, guards)


def conditional_import(node: ast.AST, function: str, guards: tuple[str, ...]) -> Iterator[Record]:
    """The same for one node, itself included."""
    match node:
        case ast.Import() | ast.ImportFrom():
            root = stack_root(node)
            if root and (function or guards):
                yield {"line": node.lineno, "function": function, "guards": list(guards), "root": root,
                       "statement": ast.unparse(node)}  # fmt: skip
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from conditional_imports(node, f"{function}.{node.name}".strip("."), guards)
        case ast.Try() | ast.If():
            for guard, part in branches(node):
                for child in part:
                    yield from conditional_import(child, function, (*guards, guard))
        case _:
            yield from conditional_imports(node, function, guards)


def missing_names(statement: str) -> list[str]:
    """The names of a failed ``from x import a, b`` that cannot be had one by one, while ``x`` itself can."""
    node = ast.parse(statement).body[0]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    missing = []
    try:
        importlib.import_module(node.module)
    except Exception:  # whatever the module raises: it cannot be had
        return []
    for alias in node.names:
        try:
            exec(f"from {node.module} import {alias.name}", {})
        except Exception:
            missing.append(alias.name)
    return missing


def run_statement(out: Path, statement: str, places: list[Record]) -> int:
    """Executes one import statement, without verl, and appends its outcome for every place that has it."""
    result = attempt(lambda: exec(statement, {}))
    if result["outcome"] == "raises":
        result["missing"] = missing_names(statement)
    for place in places:
        append(out, place | result)
    return 0


def run_below(out: Path, module: str, statements: dict[str, list[Record]]) -> int:
    """Imports a module, then every statement about it or what is below it, in children that fork along the packages.

    The same states as in fresh processes, as in visit(). RAISED where the module does not import; then nothing is
    appended, but for a whole package, which nothing else can try.
    """
    result = attempt(partial(importlib.import_module, module))
    if result["outcome"] != "ok":
        if "." not in module:
            for place in itertools.chain.from_iterable(statements.values()):
                append(out, place | result | {"missing": []})
        return RAISED
    groups: dict[str, dict[str, list[Record]]] = {}
    for statement, places in statements.items():
        name = statement.split()[1].removeprefix(module).strip(".,").partition(".")[0]
        groups.setdefault(name, {})[statement] = places
    for name, group in groups.items():
        if name and len(group) > 1 and in_child(partial(run_below, out, f"{module}.{name}", group)) == 0:
            continue
        for statement, places in group.items():
            lost = ended(in_child(partial(run_statement, out, statement, places)))
            for place in places if lost else ():
                append(out, place | (lost or {}))
    return 0


def run_after(out: Path, file: str, failed: list[Record]) -> int:
    """Imports the verl module of some failed statements, then each of them again in a child of its own."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    reachable = attempt(partial(importlib.import_module, module))["outcome"] == "ok"

    def again(row: Record) -> int:
        append(out, row | {"after_module": attempt(lambda: exec(row["statement"], {}))["outcome"]})
        return 0

    for row in failed:
        if not reachable:
            append(out, row | {"after_module": "unreachable"})
        elif lost := ended(in_child(partial(again, row))):
            append(out, row | {"after_module": lost["outcome"]})
    return 0


def uses(out: Path) -> None:
    """Runs the conditional import statements of the installed verl, each text once, and the failed ones in context.

    A statement may fail alone and work in verl, where its module has imported more before (circular imports inside
    vLLM), so ``after_module`` says how a failed one ends once its own verl module is imported.
    """
    found: dict[str, dict[str, list[Record]]] = {root: {} for root in ROOTS}
    for file in sorted(Path(SITE, "verl").rglob("*.py")):
        with contextlib.suppress(SyntaxError):
            for use in conditional_imports(ast.parse(file.read_bytes())):
                place = {"file": relative(str(file)), **use}
                found[use["root"]].setdefault(use["statement"], []).append(place)
    alone = out.with_suffix(".alone")
    alone.write_text("")
    for root, statements in found.items():
        lost = ended(in_child(partial(run_below, alone, root, statements)))
        for place in itertools.chain.from_iterable(statements.values()) if lost else ():
            append(alone, place | (lost or {}) | {"missing": []})
    failed: dict[str, list[Record]] = {}
    for row in map(json.loads, alone.read_text().splitlines()):
        if row["outcome"] == "raises" and importlib.util.find_spec(row["root"]):
            failed.setdefault(row["file"], []).append(row)
        else:
            append(out, row)
    for name, rows in failed.items():
        lost = ended(in_child(partial(run_after, out, name, rows)))
        for row in rows if lost else ():
            append(out, row | {"after_module": (lost or {})["outcome"]})


def about(out: Path) -> None:
    """Describes the environment: installed axis versions (null where absent), python, platform; no host, no paths."""
    versions: dict[str, str | None] = {}
    for name in AXES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    machine = f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}"
    gpu = Path("/dev/nvidiactl").exists()
    append(out, {"versions": versions, "python": platform.python_version(), "platform": machine, "gpu": gpu})


def main(command: str, out: Path, *modules: str) -> None:
    """Runs one command."""
    verl = Path(SITE, "verl")
    match command:
        case "tree":
            lost = ended(in_child(partial(visit, out, "verl", verl)))
            if lost:
                append(out, {"entry": "verl", "method": "fork", **lost})
        case "one":
            result = attempt(partial(importlib.import_module, modules[0]))
            append(out, {"entry": modules[0], "method": "fresh", **result})
            os._exit(0)
        case "uses":
            uses(out)
        case "about":
            about(out)
        case _:
            raise SystemExit(f"unknown command {command!r}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
