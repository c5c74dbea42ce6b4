"""`memory` on the command line: what it prints, what it exits with, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.memory.shape import shape_named
from matrix.memory.workload import Workload
from tests.unit.cli_stack import Said, said

GUIDE = "--recipe guide-0.5b"


def heard(words: str, *more: str) -> Said:
    return said("memory", *words.split(), *more)


def test_the_guides_statement_is_put_to_the_test() -> None:
    found = heard(GUIDE)
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0].startswith("qwen2.5-0.5b (0.49 B parameters) on 1 x A100-80GB (79.14 GiB)")
    assert lines[1].split()[:2] == ["rollout", "init"]
    assert [line.split("  ")[0] for line in lines if line.startswith("total")] == ["total"]
    assert "fits; what binds: " in found.out
    knobs = found.out.split("the other settings as they are:")[1]
    assert "gpu_memory_utilization" in knobs
    assert "actor.ppo_micro_batch_size_per_gpu" in knobs


def test_what_does_not_fit_exits_with_one() -> None:
    found = heard("--model Qwen/Qwen2.5-7B --gpu A100-80GB --knob max_num_seqs")
    assert found.code == 1
    assert "does not fit; what binds: " in found.out
    assert "none fits (" in found.out


def test_eight_gpus_share() -> None:
    assert heard("--model Qwen/Qwen2.5-7B --gpu H100 --n-gpus 8").code == 0


def test_json_has_everything() -> None:
    found = heard(f"{GUIDE} --json --knob gpu_memory_utilization --knob actor.ppo_micro_batch_size_per_gpu")
    data = json.loads(found.out)
    assert data["fits"] is True
    assert set(data["phases"]) >= {"rollout init", "generation", "actor update"}
    for phase in data["phases"].values():
        assert phase["total"] == pytest.approx(sum(phase["parts"].values()), abs=20)
    assert [limit["knob"].rpartition(".")[2] for limit in data["thresholds"]] == [
        "gpu_memory_utilization",
        "ppo_micro_batch_size_per_gpu",
    ]
    window, micro = data["thresholds"]
    assert 0 < window["least"] < 0.4 < window["value"] <= 1
    assert micro["value"] > 4
    assert Workload.from_json(data["workload"]).rollout.max_num_seqs == 512
    assert all(constant["source"] for constant in data["constants"].values())


def test_settings_are_verls_keys() -> None:
    words = "--gpu L4 --json --knob max_num_seqs --set critic.enable=false --set +trainer.use_v1=False"
    words += " --set actor_rollout_ref.rollout.max_model_len=null --set actor_rollout_ref.actor.strategy='fsdp2'"
    words += " --set actor_rollout_ref.actor.entropy_coeff=0.5"
    data = json.loads(heard(f"--model qwen2.5-0.5b {words}").out)
    settings = data["workload"]["settings"]
    assert settings["critic.enable"] is False
    assert settings["trainer.use_v1"] is False
    assert settings["actor_rollout_ref.rollout.max_model_len"] is None
    assert settings["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert settings["actor_rollout_ref.actor.entropy_coeff"] == 0.5
    assert "values" not in data["phases"]


def test_an_older_vllm_lays_its_graphs_on_top() -> None:
    newer, older = (
        json.loads(heard(f"{GUIDE} --json --knob max_num_seqs --vllm {version}").out)
        for version in ("0.24.0", "0.12.0")
    )
    assert older["engine"]["kv_tokens"] > newer["engine"]["kv_tokens"]


def test_a_card_without_bfloat16_is_told() -> None:
    assert "no bfloat16" in heard("--model tiny --gpu V100-32GB").out


def test_a_config_and_a_workload_are_read(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert heard("--gpu L4 --config", str(tmp_path / "config.json")).code == 0
    load = Workload(shape=shape_named("tiny")).with_settings(
        {
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
        }
    )
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(load.to_json()), encoding="utf-8")
    data = json.loads(heard("--gpu L4 --json --workload", str(path)).out)
    assert Workload.from_json(data["workload"]) == load


REFUSED = [
    ("--gpu L4", "one of --model"),
    ("--model tiny --recipe guide-0.5b", "one of --model"),
    ("--model tiny", "No card is named"),
    ("--model tiny --gpu L5", "no card"),
    ("--model tiny --gpu L4 --set data.max_prompt_length", "no KEY=VALUE"),
    ("--model tiny --gpu L4 --set =1", "no KEY=VALUE"),
    ("--model tiny --gpu L4 --knob max_token_len_per_gpu", "names no one knob"),
    ("--model tiny --gpu L4 --knob ppo_max_token_len_per_gpu", "It may be"),
    ("--model tiny --gpu L4 --vllm newest", "no version"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_words_that_make_no_sense_are_told(words: str, message: str) -> None:
    found = heard(words)
    assert found.code == 2
    assert message in found.err


@pytest.mark.parametrize("option", ["--workload", "--config"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "given.json: cannot be read: No such file or directory"),
        ("{", "given.json: cannot be read: Expecting property name"),
        ("[]", "given.json: is not an object"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_alike(tmp_path: Path, option: str, text: str | None, said: str) -> None:
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    found = heard(f"--gpu L4 {option}", str(path))
    assert found.code == 3
    assert said in found.err
    assert f"Give a {'workload' if option == '--workload' else 'config.json'}" in found.err


def test_a_file_that_holds_no_workload_is_told(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text('{"schema": 1}', encoding="utf-8")
    found = heard("--gpu L4 --workload", str(path))
    assert (found.code, "A workload has schema 1, a shape and settings." in found.err) == (3, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", ""], "No card is named"),
        (["--gpu", "0GiB"], "holds nothing"),
        (["--gpu", "H200", "--set", "actor_rollout_ref.rollout.max_num_seqs=nan"], "is a whole number"),
        (["--gpu", "H200", "--set", "actor_rollout_ref.rollout.max_num_seqs=inf"], "is a whole number"),
        (["--gpu", "H200", "--set", "actor_rollout_ref.actor.entropy_coeff=nan"], "is a number"),
        (["--gpu", "H200", "--set", "foo.bar=1"], "data.max_response_length"),
        (["--gpu", "H200", "--set", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"], "does not go with"),
        (["--gpu", "H200", "--set", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "does not go with"),
        (["--gpu", "H200", "--n-gpus", "3", "--set", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "verl"),
    ],
)
def test_what_cannot_be_is_refused_and_not_predicted(words: list[str], said: str) -> None:
    found = heard("--model Qwen/Qwen2.5-0.5B", *words)
    assert found.code == 2
    assert said in found.err
