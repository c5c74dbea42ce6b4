"""vLLM's model runner: which of its two a release takes for a model, and what its profiling pass leaves out.

vLLM has two, and the second spread over the releases: Qwen3 from 0.22, Llama from 0.24, every dense model from 0.26
(config/vllm.py: DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES, read in 0.20.2, 0.22.1, 0.24.0 and 0.26.0). The first takes an
estimate of its CUDA graphs off the KV cache from 0.20 on (envs.py: off in 0.19.1, on in 0.20.0); the second never
does, and its profiling skips the sampler's copies (v1/worker/gpu/model_runner.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from matrix.memory.shape import Family

CURRENT = "0.24.0"
"""The release that verl 0.9.1's extra pins."""
_GRAPHS = Version("0.20")
_SECOND = {Family.QWEN3: Version("0.22"), Family.LLAMA: Version("0.24"), Family.QWEN2: Version("0.26")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """What matters of a model runner: whether graphs and the sampler's copies are taken off the KV cache."""

    profiles_graphs: bool
    profiles_sampler: bool


def runner_of(release: str, family: Family) -> Runner:
    """Return the runner that a release takes for a family of models; raises InvalidVersion for no version."""
    version = Version(release)
    second = version >= _SECOND[family]
    return Runner(profiles_graphs=version >= _GRAPHS and not second, profiles_sampler=not second)
