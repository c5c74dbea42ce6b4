"""The trainer of verl, built as `main_ppo` builds it, in this one process and without Ray.

Actor: `ActorRolloutRefWorker` with the role `actor`. Critic: `TrainingWorker` with the settings that the release's own
trainer gives it. Ray would have made actors of both; what is called here is what the trainer calls.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RELEASES = ("0.8.0", "0.9.0", "0.9.1")
"""Releases whose trainer is made of these two classes; before them the default was `verl.workers.fsdp_workers`."""

UNLISTED = ("critic.ppo_infer_max_token_len_per_gpu",)
"""Keys that the settings have a field for and no release's files list."""


class UnsupportedError(Exception):
    """The installed release of verl trains through other classes, or the knob does nothing there."""


def release() -> str:
    """Return the installed release of verl; raises UnsupportedError for one that trains otherwise."""
    found = version("verl")
    if found not in RELEASES:
        raise UnsupportedError(f"verl {found} does not train through the classes tried here ({', '.join(RELEASES)})")
    return found


def alone() -> None:
    """Set what torchrun or Ray would have set for a world of one process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    }.items():  # fmt: skip
        os.environ[name] = value


def load() -> None:
    """Import what building and stepping will need, without touching the device, so that a process can stand by."""
    import hydra  # noqa: F401
    import verl.trainer.ppo.core_algos
    import verl.workers.engine.fsdp
    import verl.workers.engine_workers
    import verl.workers.utils.losses  # noqa: F401


def compose(spec: dict[str, Any]) -> Any:
    """Return the whole configuration, as `python -m verl.trainer.main_ppo` would have it with the spec's settings.

    A setting whose key this release lacks is passed over where it only says the default of another release
    (`defaults`), and refused elsewhere.
    """
    from omegaconf import OmegaConf, open_dict

    config = composed(["actor_rollout_ref.rollout.name=vllm"])
    with open_dict(config):
        for key, value in settings(spec).items():
            parent, _, name = key.rpartition(".")
            owner = OmegaConf.select(config, parent)
            there = owner is not None and name in owner
            if there or parent.endswith("override_config") or key in UNLISTED:
                OmegaConf.update(config, key, value, force_add=True)
            elif key not in spec.get("defaults", ()):
                raise UnsupportedError(f"verl {release()} has no key {key}")
    return config


def composed(words: Sequence[str]) -> Any:
    """Return the configuration that hydra composes of the installed release's files and overrides, as words."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    # Found without being imported: an engine that is forked from here must not have met the driver.
    found = find_spec("verl")
    assert found is not None, "verl is not installed"
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra_compose(config_name="ppo_trainer", overrides=list(words))


def settings(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec's settings with the models' folder, which is written now where it is not there."""
    from workload.model import model_for

    found = dict(spec["settings"])
    model = spec.get("model") or str(model_for(spec["shape"], Path(spec["folder"])))
    return {"actor_rollout_ref.model.path": model, "critic.model.path": model, **found}


class Trainer:
    """Actor and, where asked for, critic."""

    def __init__(self, config: Any, *, critic: bool) -> None:
        self.config = config
        self.with_critic = critic
        self.actor: Any = None
        self.critic: Any = None
        self.release = release()

    @property
    def padded(self) -> bool:
        """Return whether this release's default trainer pads its batches."""
        return self.release.startswith("0.8.")

    def build(self) -> None:
        """Build the engines, critic first as the trainer does."""
        if self.with_critic:
            self.critic = self._build_critic()
        self.actor = self._build_actor()

    def _build_critic(self) -> Any:
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config import TrainingWorkerConfig
        from verl.workers.engine_workers import TrainingWorker
        from verl.workers.utils.losses import value_loss

        settings = omega_conf_to_dataclass(self.config.critic)
        engine = settings.engine
        engine.infer_max_token_len_per_gpu = settings.ppo_infer_max_token_len_per_gpu
        # verl 0.9's trainer takes the inference budget for the update as well; 0.8 has one for each.
        budget = settings.ppo_max_token_len_per_gpu if self.padded else settings.ppo_infer_max_token_len_per_gpu
        engine.max_token_len_per_gpu = budget
        worker = TrainingWorker(
            config=TrainingWorkerConfig(
                model_type="value_model",
                model_config=settings.model,
                engine_config=engine,
                optimizer_config=settings.optim,
                checkpoint_config=settings.checkpoint,
            )
        )
        worker.reset()
        worker.set_loss_fn(partial(value_loss, config=settings))
        return worker

    def _build_actor(self) -> Any:
        from verl.workers.engine_workers import ActorRolloutRefWorker

        worker = ActorRolloutRefWorker(
            config=self.config.actor_rollout_ref, role="actor", distillation_config=self.config.get("distillation")
        )
        worker.init_model()
        return worker

    def expandable(self) -> bool:
        """Switch the allocator to expandable segments, as verl does at the end of each weight sync; return whether."""
        from verl.utils.device import set_expandable_segments

        set_expandable_segments(True)
        return True

    def phases(self) -> dict[str, Callable[[Any], Any]]:
        """Return what a step does with a batch, by the word of the part, in the order of a step."""
        found: dict[str, Callable[[Any], Any]] = {"old log-prob": self._old_log_prob}
        if self.with_critic:
            found |= {"values": self._values, "critic update": self._update_critic}
        return found | {"actor update": self._update_actor}

    def _old_log_prob(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False)
        return self.actor.compute_log_prob(data)

    def _values(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, compute_loss=False)
        return self.critic.infer_batch(data)

    def _update_critic(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, **self._update(data, self.config.critic))
        return self.critic.train_mini_batch(data)

    def _update_actor(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        actor = self.config.actor_rollout_ref.actor
        entropy = bool(actor.get("calculate_entropy", False)) or actor.entropy_coeff != 0.0
        more = {"calculate_entropy": entropy, "distillation_use_topk": False, "distillation_only": False}
        tu.assign_non_tensor(data, compute_loss=True, **more, **self._update(data, actor))
        return self.actor.update_actor(data)

    @staticmethod
    def _update(data: Any, settings: Any) -> dict[str, Any]:
        """Return what the trainer adds to a batch for an update; the whole batch is one mini-batch, of one epoch."""
        rows = data.shape[0]
        return {
            "global_batch_size": rows,
            "mini_batch_size": rows,
            "epochs": 1,
            "seed": settings.data_loader_seed,
            "dataloader_kwargs": {"shuffle": settings.shuffle},
        }
