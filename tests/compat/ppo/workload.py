"""The workload: a tiny random Qwen2, its tokenizer, a small GSM8K-format set, and what verl is told of them.

Nothing here knows of a platform, so a bench can train the same thing elsewhere. All that is written depends on the
workload alone: the same workload gives the same bytes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
_THINGS = ("apples", "books", "coins", "pens", "shells", "stamps")


@dataclass(frozen=True)
class Workload:
    """What is trained and for how long; lengths in tokens, batch sizes in prompts."""

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    vocabulary: int = 320
    spread: float = 0.15
    """Standard deviation of the weights: far from a uniform policy, so that a rollout with other weights is seen."""
    rows: int = 32
    prompts: int = 8
    samples: int = 2
    mini_batch: int = 8
    """All of them: verl puts a batch in the order of random keys, and smaller parts would differ from run to run."""
    epochs: int = 2
    prompt_length: int = 96
    response_length: int = 16
    steps: int = 2
    actor_lr: float = 2e-3
    critic_lr: float = 2e-3
    seed: int = 17


@dataclass(frozen=True)
class Written:
    """Where a workload was written: folders of actor and critic, the two parquet files."""

    actor: Path
    critic: Path
    train: Path
    test: Path


def write(workload: Workload, folder: Path) -> Written:
    """Write tokenizer, weights and data below `folder` and return where they are."""
    rows = [row(number, workload) for number in range(workload.rows)]
    written = Written(
        actor=folder / "actor", critic=folder / "critic", train=folder / "train.parquet", test=folder / "test.parquet"
    )
    texts = [entry["prompt"][0]["content"] for entry in rows]
    for part, model in ((written.actor, write_actor), (written.critic, write_critic)):
        part.mkdir(parents=True, exist_ok=True)
        write_tokenizer(texts, workload, part)
        model(workload, part)
    write_rows(rows, written.train)
    write_rows(rows[:4], written.test)
    return written


def row(number: int, workload: Workload) -> dict[str, Any]:
    """Return one sum in the format that verl's own preprocessing of GSM8K writes."""
    rng = random.Random(f"{workload.seed}/{number}")
    who, thing, has, gets = rng.choice(_NAMES), rng.choice(_THINGS), rng.randrange(2, 60), rng.randrange(2, 40)
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{who} has {has} {thing} and gets {gets}. How many {thing}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(has + gets)},
        "extra_info": {"split": "train", "index": number},
    }


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def write_tokenizer(texts: list[str], workload: Workload, folder: Path) -> None:
    """Train a byte-level BPE on `texts` and write it as a Qwen2 tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=workload.vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != workload.vocabulary:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, not {workload.vocabulary}")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": 4096,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def write_actor(workload: Workload, folder: Path) -> None:
    """Write a Qwen2 that predicts tokens, with random weights drawn from the workload's seed."""
    head: dict[str, tuple[int, ...]] = {"lm_head.weight": (workload.vocabulary, workload.hidden)}
    _write_model(workload, folder, "Qwen2ForCausalLM", body(workload) | head, workload.seed)


def write_critic(workload: Workload, folder: Path) -> None:
    """Write a Qwen2 that predicts one value for each token; its head is written too, or each run would draw its own."""
    head: dict[str, tuple[int, ...]] = {"score.weight": (1, workload.hidden), "score.bias": (1,)}
    _write_model(workload, folder, "Qwen2ForTokenClassification", body(workload) | head, workload.seed + 1)


def _write_model(
    workload: Workload, folder: Path, architecture: str, shapes: dict[str, tuple[int, ...]], seed: int
) -> None:
    # Written with numpy alone: importing torch and transformers to draw 100 000 numbers takes longer than a step.
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    tensors = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else np.zeros(shape, np.float32)
        if name.endswith("bias")
        else (workload.spread * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": [architecture],
        "model_type": "qwen2",
        "dtype": "float32",
        "vocab_size": workload.vocabulary,
        "hidden_size": workload.hidden,
        "intermediate_size": 2 * workload.hidden,
        "num_hidden_layers": workload.layers,
        "num_attention_heads": workload.heads,
        "num_key_value_heads": workload.heads,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": workload.spread,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generation = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def body(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a Qwen2 without its head, by its name in a checkpoint."""
    width, inner = workload.hidden, 2 * workload.hidden
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (workload.vocabulary, width)}
    for layer in (f"model.layers.{number}" for number in range(workload.layers)):
        for part in "qkv":
            found[f"{layer}.self_attn.{part}_proj.weight"] = (width, width)
            found[f"{layer}.self_attn.{part}_proj.bias"] = (width,)
        found[f"{layer}.self_attn.o_proj.weight"] = (width, width)
        found[f"{layer}.mlp.gate_proj.weight"] = found[f"{layer}.mlp.up_proj.weight"] = (inner, width)
        found[f"{layer}.mlp.down_proj.weight"] = (width, inner)
        found[f"{layer}.input_layernorm.weight"] = found[f"{layer}.post_attention_layernorm.weight"] = (width,)
    return found | {"model.norm.weight": (width,)}


def overrides(workload: Workload, written: Written, reward: Path) -> list[str]:
    """Return the hydra overrides that say what is trained, on whatever platform."""
    # one micro-batch for each mini-batch; verl wants the former to divide the latter
    batch = workload.mini_batch * workload.samples
    return [
        "algorithm.adv_estimator=gae",
        f"data.train_files={written.train}",
        f"data.val_files={written.test}",
        f"data.train_batch_size={workload.prompts}",
        f"data.max_prompt_length={workload.prompt_length}",
        f"data.max_response_length={workload.response_length}",
        "data.shuffle=False",
        f"reward.custom_reward_function.path={reward}",
        "reward.custom_reward_function.name=compute_score",
        f"actor_rollout_ref.model.path={written.actor}",
        f"actor_rollout_ref.actor.optim.lr={workload.actor_lr}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={workload.mini_batch}",
        f"actor_rollout_ref.actor.ppo_epochs={workload.epochs}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch}",
        f"actor_rollout_ref.rollout.n={workload.samples}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={batch}",
        f"actor_rollout_ref.rollout.seed={workload.seed}",
        f"critic.model.path={written.critic}",
        f"critic.optim.lr={workload.critic_lr}",
        f"critic.ppo_mini_batch_size={workload.mini_batch}",
        f"critic.ppo_epochs={workload.epochs}",
        f"critic.ppo_micro_batch_size_per_gpu={batch}",
        f"trainer.total_training_steps={workload.steps}",
    ]
