"""Configurations, run dry through verl's own composition and checks: what is refused, what is accepted, what is dead.

Nothing is started; the model is a configuration and a tokenizer on disk, which verl reads to check the critic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import Cell, run_python

pytestmark = [
    pytest.mark.tier("behave"),
    pytest.mark.needs("verl>=0.3", "hydra-core", "transformers", "torch"),
    pytest.mark.limit(600),
]
DRY_RUN = Path(__file__).parent / "subjects" / "config_dry_run.py"
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.WordLevel({"<eos>": 0, "<unk>": 1, "a": 2}, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")
fast.save_pretrained(sys.argv[1])
"""
PPO = (
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "algorithm.adv_estimator=gae",
    "trainer.n_gpus_per_node=1",
)


OLD_FSDP, NEW_FSDP = "critic.model.fsdp_config.param_offload=True", "critic.fsdp.param_offload=True"
TWO_GPUS = ("critic.model.use_remove_padding=True", "trainer.n_gpus_per_node=2")
CASES = {
    "ppo": PPO,
    "defaults": ("actor_rollout_ref.rollout.name=vllm",),
    "chunk": (*PPO, "actor_rollout_ref.rollout.chunked_prefill_size=512"),
    "word": (*PPO, "data.train_batch_size=abc"),
    "old-ulysses": (*PPO, *TWO_GPUS, "critic.ulysses_sequence_parallel_size=2"),
    "new-ulysses": (*PPO, *TWO_GPUS, "critic.fsdp.ulysses_sequence_parallel_size=2"),
    "one-gpu-ulysses": (
        *PPO,
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
        "actor_rollout_ref.model.use_remove_padding=True",
    ),
    "zero": (*PPO, "critic.ppo_micro_batch_size_per_gpu=0"),
    "old-fsdp": (*PPO, OLD_FSDP),
    "new-fsdp": (*PPO, NEW_FSDP),
}
Runs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return how far each case came, all run dry in one child."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(QWEN2), encoding="utf-8")
    ended = run_python("-c", TOKENIZER, str(folder), timeout=200)
    assert ended.code == 0, ended.fault
    paths = [f"actor_rollout_ref.model.path={folder}", f"critic.model.path={folder}"]
    asked = folder / "cases.json"
    asked.write_text(json.dumps({name: [*words, *paths] for name, words in CASES.items()}), encoding="utf-8")
    ended = run_python(str(DRY_RUN), "ppo_trainer", str(asked), timeout=350)
    assert ended.code == 0, ended.fault
    # What verl and vLLM register at exit may write after it.
    (answer,) = [line for line in ended.stdout.splitlines() if line.startswith("DRY-RUN ")]
    found: Runs = json.loads(answer.removeprefix("DRY-RUN "))
    return found


def _is_valid(run: dict[str, Any]) -> bool:
    """Return whether verl's check let a configuration through; classes of nodes are made after it."""
    return run["stage"] in ("typed", "done")


def test_an_ordinary_ppo_configuration_is_valid(runs: Runs) -> None:
    """The smallest one-GPU PPO command line passes verl's own check."""
    assert _is_valid(runs["ppo"]), runs["ppo"]["error"]
    assert runs["ppo"]["resolved"]["trainer"]["n_gpus_per_node"] == 1


def test_defaults_alone_are_refused(runs: Runs) -> None:
    """Without a micro-batch size verl refuses to start, and says so."""
    assert runs["defaults"]["stage"] == "validate"
    assert "Please set at least one of" in runs["defaults"]["error"]


def test_a_key_that_does_not_exist_is_refused_by_hydra(runs: Runs) -> None:
    """`chunked_prefill_size`, which guides recommend, never existed."""
    assert runs["chunk"]["stage"] == "compose"
    assert "Could not override 'actor_rollout_ref.rollout.chunked_prefill_size'" in runs["chunk"]["error"]


def test_hydra_takes_a_word_for_a_number(runs: Runs) -> None:
    """`data.train_batch_size=abc` composes; it is verl's check that stumbles over it."""
    assert runs["word"]["stage"] == "validate"
    assert runs["word"]["error"].startswith("TypeError")


@pytest.mark.needs("verl>=0.8")
def test_the_old_key_of_the_critics_ulysses_is_dead(runs: Runs) -> None:
    """From 0.8.0 critic.ulysses_sequence_parallel_size is accepted and does not reach the engine; its new key does."""
    sizes = {}
    for name in ("old-ulysses", "new-ulysses"):
        assert runs[name]["stage"] == "done", runs[name]["error"]
        sizes[name] = runs[name]["effective"]["critic.engine.ulysses_sequence_parallel_size"]
    assert sizes == {"old-ulysses": 1, "new-ulysses": 2}


def test_ulysses_on_one_gpu_is_accepted_by_the_check(runs: Runs) -> None:
    """The check lets sequence parallelism of 2 on one GPU through once padding is removed; it dies when it starts."""
    assert _is_valid(runs["one-gpu-ulysses"]), runs["one-gpu-ulysses"]["error"]


def test_a_micro_batch_of_zero_is_accepted_by_the_check(runs: Runs) -> None:
    """A micro-batch size of zero passes the check in every release."""
    assert _is_valid(runs["zero"]), runs["zero"]["error"]


def test_fsdp_settings_of_the_critic_moved(cell: Cell, runs: Runs) -> None:
    """critic.model.fsdp_config until 0.7, critic.fsdp from 0.8; the other spelling is refused."""
    release = tuple(int(part) for part in (cell.version("verl") or "").split(".")[:2])
    right, wrong = ("old-fsdp", "new-fsdp") if release < (0, 8) else ("new-fsdp", "old-fsdp")
    assert _is_valid(runs[right]), runs[right]["error"]
    assert runs[wrong]["stage"] == "compose"
    assert "Could not override" in runs[wrong]["error"]
