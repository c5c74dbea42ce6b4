"""A dry run of a configuration in this environment: verl's own files, hydra's own composition, verl's own checks.

`python config_dry_run.py CONFIG FILE [brief]` prints one line, `DRY-RUN ` and JSON: for each list of overrides that the
JSON in FILE holds by name, {"stage", "error", "resolved", "effective"}. `stage` is how far it came: `compose` (hydra
refuses), `resolve` (an interpolation fails), `validate` (verl's check raises), `typed` (a node does not fit its class),
`done`.
With `brief` the last two, which are long, are left out.
Nothing is started. Runs on Python 3.10 with verl, hydra and what verl imports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MARK = "DRY-RUN "


def main(config: str, path: str, told: str = "") -> None:
    """Print how far each list of overrides comes."""
    asked = json.loads(Path(path).read_text(encoding="utf-8"))
    found = {name: _run(config, overrides) for name, overrides in asked.items()}
    if told == "brief":
        found = {name: {"stage": run["stage"], "error": run["error"]} for name, run in found.items()}
    print("\n" + MARK + json.dumps(found, default=str), flush=True)


def _run(config: str, overrides: list[str]) -> dict[str, object]:
    stage, error = "compose", ""
    resolved: object = {}
    effective: dict[str, object] = {}
    try:
        import verl
        from hydra import compose, initialize_config_dir
        from omegaconf import OmegaConf

        folder = Path(verl.__file__).parent / "trainer" / "config"
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            made = compose(config, overrides=overrides)
        stage = "resolve"
        resolved = OmegaConf.to_container(made, resolve=True)
        stage = "validate"
        _validate(made)
        stage = "typed"
        effective = _typed(made)
        stage = "done"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {"stage": stage, "error": error, "resolved": resolved, "effective": effective}


def _validate(config) -> None:  # type: ignore[no-untyped-def]
    """Run the check of this release: a function from 0.6 on, a method of the trainer before."""
    critic = config.critic.get("enable")
    use_critic = bool(critic) if critic is not None else config.algorithm.adv_estimator == "gae"
    actor = config.actor_rollout_ref.actor
    use_reference = bool(actor.get("use_kl_loss") or config.algorithm.get("use_kl_in_reward"))
    try:
        from verl.utils.config import validate_config
    except ImportError:
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer

        trainer = object.__new__(RayPPOTrainer)
        trainer.config, trainer.use_critic, trainer.use_reference_policy = config, use_critic, use_reference
        trainer._validate_config()
    else:
        validate_config(config=config, use_reference_policy=use_reference, use_critic=use_critic)


def _typed(config) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Return what reaches the engines of actor and critic where this release makes classes of the nodes."""
    try:
        from verl.utils.config import omega_conf_to_dataclass
    except ImportError:
        return {}
    found: dict[str, object] = {}
    for name, node in (("actor", config.actor_rollout_ref.actor), ("critic", config.critic)):
        if "_target_" not in node:
            continue
        made = omega_conf_to_dataclass(node)
        engine = getattr(made, "engine", None)
        for key in ("ulysses_sequence_parallel_size", "param_offload", "use_dynamic_bsz", "micro_batch_size_per_gpu"):
            if hasattr(engine, key):
                found[f"{name}.engine.{key}"] = getattr(engine, key)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
