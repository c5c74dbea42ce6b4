"""The control: a step whose weights are on purpose not sent to the rollout, so that a broken sync is seen to be seen.

Not a patch that the run needs: it is off unless `PPO_SKIP_SYNC_AFTER` names a step, and what it breaks is what the
check of the step after it must notice.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from ppo.patches import Patch
from ppo.patches import install as install_patches

SKIP = "PPO_SKIP_SYNC_AFTER"


def _skipping(original: Any, _: ModuleType) -> Any:
    step = int(os.environ[SKIP])

    class Skipping(original):  # type: ignore[misc]
        async def update_weights(self, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
            if global_steps == step:
                weights.close()
                return
            await super().update_weights(weights, global_steps=global_steps, **kwargs)

    functools.update_wrapper(Skipping, original, updated=())
    return Skipping


CONTROL = Patch(
    name="skip-sync",
    distribution="verl",
    releases=("0.9.1",),
    module="verl.workers.rollout.vllm_rollout.vllm_rollout",
    attribute="ServerAdapter",
    what="the weights of one step are not sent to the rollout",
    why="a check of the sync is worth something only where it fails when the sync does",
    replace=_skipping,
    symptom="",
)


def install() -> None:
    """Install the control where the environment asks for it."""
    if os.environ.get(SKIP):
        install_patches([CONTROL])
