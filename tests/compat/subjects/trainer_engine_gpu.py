"""A stage: verl's FSDP engine in a world of one rank; `trainer_engine_gpu.py cuda|cpu`."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

from kit.sections import section

LENGTHS = (40, 17, 29, 33)


def steps(path: Path) -> None:
    """Infer and train under FSDP1 and FSDP2, with parameters at home and offloaded."""
    import trainer_engine as engines

    exact = engines.reference(LENGTHS)
    for name, asked in (
        ("fsdp", {"strategy": "fsdp"}),
        ("fsdp2", {"strategy": "fsdp2"}),
        ("fsdp-offload", {"strategy": "fsdp", "param_offload": True, "optimizer_offload": True}),
        ("fsdp2-offload", {"strategy": "fsdp2", "param_offload": True, "optimizer_offload": True}),
        ("fsdp2-policy", {"strategy": "fsdp2", "offload_policy": True}),
    ):
        with section(f"step-{name}") as out:
            made = engines.make(path, **asked)
            found = engines.log_probs(made, engines.batch(LENGTHS))
            out["gap"] = max(float((a[:-1] - b).abs().max()) for a, b in zip(found, exact, strict=True))
            out |= engines.train(made, engines.batch(LENGTHS))


def offloaded(path: Path, device: str) -> None:
    """Call a module whose parameters verl has moved to the CPU, without verl's own way back."""
    import torch
    import trainer_engine as engines
    import trainer_world as world

    for name, strategy, dtype in (("fsdp", "fsdp", "bf16"), ("fsdp-fp32", "fsdp", "fp32"), ("fsdp2", "fsdp2", "bf16")):
        mixed = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        with section(f"offloaded-{name}") as out, torch.no_grad():
            made = engines.make(path, strategy=strategy, param_offload=True, mixed_precision=mixed)
            out["devices"] = sorted({str(one.device) for one in made.module.parameters()})
            tokens = world.ids(device)
            out["logits"] = float(made.module(input_ids=tokens, use_cache=False).logits.float().abs().mean())
        with section(f"offloaded-{name}-backward") as out:
            made = engines.make(path, strategy=strategy, param_offload=True, mixed_precision=mixed)
            out["loss"] = world.step(made.module, device)


def policy(path: Path) -> None:
    """Send the weights and save a checkpoint where FSDP2's own policy keeps the parameters on the CPU."""
    import trainer_engine as engines

    asked = {"strategy": "fsdp2", "offload_policy": True}
    for strategy, settings in (("policy", asked), ("home", {"strategy": "fsdp2"})):
        with section(f"{strategy}-sync") as out:
            sent, _ = engines.make(path, **settings).get_per_tensor_param()
            out["sent"] = len({name for name, value in sent if value.numel()})
        with section(f"{strategy}-checkpoint") as out:
            folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
            made = engines.make(path, **settings)
            made.save_checkpoint(str(folder), global_step=1)
            out["files"] = sorted(one.name for one in folder.iterdir())


def precision(path: Path) -> None:
    """Look at the type that a linear layer's output has for each `mixed_precision.param_dtype`."""
    import torch
    import trainer_engine as engines

    for name in ("bf16", "fp16", "fp32"):
        with section(f"precision-{name}") as out:
            mixed = {"param_dtype": name, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
            made = engines.make(path, strategy="fsdp2", mixed_precision=mixed)
            seen: list[str] = []
            layer = next(part for part in made.module.modules() if isinstance(part, torch.nn.Linear))
            layer.register_forward_hook(lambda _m, _i, o, seen=seen: seen.append(str(o.dtype).removeprefix("torch.")))
            engines.log_probs(made, engines.batch(LENGTHS))
            out["output"] = seen[0]


def settings(path: Path) -> None:
    """Make engines with a setting each, and see what came of it."""
    import trainer_engine as engines

    with section("ulysses-alone") as out:
        out["made"] = type(engines.make(path, ulysses_sequence_parallel_size=2)).__name__
    with section("forward-prefetch") as out:
        made = engines.make(path, strategy="fsdp2", forward_prefetch=True)
        states = [one._get_fsdp_state() for one in made.module.modules() if hasattr(one, "_get_fsdp_state")]
        out["sharded"] = len(states)
        out["prefetching"] = sum(bool(state._states_to_forward_prefetch) for state in states)
    with section("checkpointing") as out:
        made = engines.make(path, model={"enable_gradient_checkpointing": True})
        found = [one._gradient_checkpointing_func for one in made.module.modules()
                 if getattr(one, "gradient_checkpointing", False)]  # fmt: skip
        out["layers"] = len(found)
        out["reentrant"] = sorted({str(one.keywords.get("use_reentrant")) for one in found})
        out |= engines.train(made, engines.batch(LENGTHS))


def fused(path: Path) -> None:
    """Compute log-probabilities by verl's fused kernel, whose head FSDP2 has sharded."""
    import trainer_engine as engines
    import trainer_world as world

    exact = engines.reference(LENGTHS)
    tied = world.folder(tie_word_embeddings=True)
    exact_tied = engines.reference(LENGTHS, tie_word_embeddings=True)
    for name, where, wanted, strategy in (
        ("fused-fsdp2", path, exact, "fsdp2"),
        ("fused-fsdp2-tied", tied, exact_tied, "fsdp2"),
        ("fused-fsdp", path, exact, "fsdp"),
    ):
        with section(name) as out:
            asked = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}
            made = engines.make(where, strategy=strategy, model=asked)
            told = engines.batch(LENGTHS, use_fused_kernels=True, calculate_entropy=True)
            found = engines.log_probs(made, told)
            out["gap"] = max(float((a[:-1] - b).abs().max()) for a, b in zip(found, wanted, strict=True))


def retention() -> None:
    """Train on few and many micro-batches of one size, watching an entropy that is not part of the loss."""
    import torch
    import trainer_engine as engines
    import trainer_world as world

    with section("retention") as out:
        made = engines.make(world.folder(vocab_size=32000))
        for rows in (2, 16):
            data = engines.batch((512,) * rows, each=1, calculate_entropy=True)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            engines.train(made, data)
            out[f"peak_{rows}"] = torch.cuda.max_memory_allocated() - before
        out["logits"] = 512 * 32000 * 4


def grpo() -> None:
    """Compute verl's vectorised GRPO advantages from scores on the CPU, in a process that sees what there is."""
    import numpy as np
    import torch
    from verl.trainer.ppo import core_algos

    with section("grpo-vectorized") as out:
        rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        index = np.array(["a", "a", "b", "b"], dtype=object)
        found, _ = core_algos.compute_grpo_vectorized_outcome_advantage(rewards, torch.ones(4, 2), index)
        out["advantages"] = found[:, 0].tolist()
        out["device"] = str(found.device)


def main(kind: str) -> None:
    """Run every section of the engine."""
    with section("world", stop=True) as out:
        import trainer_world as world

        device = world.start(kind)
        import verl
        from verl.workers.engine.fsdp import transformer_impl

        out["verl"], out["engine"] = verl.__version__, transformer_impl.__name__
        path = world.folder()
    import trainer_models as models

    runs: list[tuple[Any, ...]] = [(steps, path), (offloaded, path, device), (policy, path), (precision, path)]
    runs += [(settings, path), (grpo,), (models.critic, path, device)]
    if kind == "cuda":
        runs.append((retention,))
    # From here on each puts its own in the place of a method of a class, or takes a package away.
    runs += [(models.linear_attention,), (models.qwen3_vl, device), (fused, path), (models.critic_without_flash, path)]
    for run, *given in runs:
        with section(f"group-{run.__name__}"):
            run(*given)


if __name__ == "__main__":
    main(sys.argv[1])
