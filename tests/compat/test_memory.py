"""Known failures of memory that show without a GPU: settings that exclude each other."""

from __future__ import annotations

import pytest
from kit import Trial
from kit.measure import run_subject


@pytest.mark.failure("cumem-expandable-segments-assert")
@pytest.mark.tier("import")
@pytest.mark.needs("vllm>=0.7.0")
@pytest.mark.limit(300)
def test_sleep_mode_with_expandable_segments(trial: Trial) -> None:
    """The sleep-mode allocator of vLLM with the setting that is advised against running out of memory."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    trial.judge(run_subject("memory_cumem", env=env, timeout=250))
