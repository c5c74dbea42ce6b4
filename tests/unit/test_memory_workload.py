"""The workload: its keys, its JSON, its knobs, and the shapes it is made of."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import DataError, UsageError
from matrix.memory.knob import Direction, Knob, Unit
from matrix.memory.shape import Family, Shape, load_shapes, shape_named
from matrix.memory.workload import Attention, Dtype, Forward, Rollout, Strategy, Training, Workload

TINY = shape_named("tiny")
PLAIN = Workload(shape=TINY)


def test_settings_name_every_field_once() -> None:
    settings = PLAIN.settings
    assert settings["data.max_response_length"] == 512
    assert settings["critic.model.enable_gradient_checkpointing"] is True
    assert settings["critic.enable"] is True
    assert settings["actor_rollout_ref.actor.use_kl_loss"] is False
    assert settings["actor_rollout_ref.actor.strategy"] == "fsdp"
    assert len([key for key in settings if key.endswith("max_model_len")]) == 1


def test_json_is_plain_and_comes_back() -> None:
    changed = PLAIN.with_settings(
        {
            "data.max_prompt_length": 100,
            "actor_rollout_ref.actor.strategy": "fsdp2",
            "actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16",
            "critic.enable": False,
            "actor_rollout_ref.actor.use_kl_loss": True,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 3,
        }
    )
    again = Workload.from_json(json.loads(json.dumps(changed.to_json())))
    assert again == changed
    assert again.critic is None
    assert again.reference == Forward(micro_batch_size_per_gpu=3)
    assert (again.actor.strategy, again.actor.model_dtype.size) == (Strategy.FSDP2, 2)


def test_a_part_that_is_named_is_brought_in() -> None:
    bare = PLAIN.with_settings({"critic.enable": False})
    assert bare.critic is None
    back = bare.with_settings({"critic.ppo_infer_max_token_len_per_gpu": 5000})
    assert back.critic is not None
    assert back.critic.ppo_infer_max_token_len_per_gpu == 5000
    both = bare.with_settings({"critic.enable": False, "critic.fsdp.param_offload": True})
    assert both.critic is None


def test_keys_that_verl_copies_mean_the_others() -> None:
    asked = PLAIN.with_settings({"actor_rollout_ref.rollout.response_length": 9})
    assert asked.response_length == 9
    sharded = PLAIN.with_settings({"actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2})
    assert sharded.actor.ulysses_sequence_parallel_size == 2


def test_keys_follow_others_as_in_verls_own_files() -> None:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    asked = {
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": 9000,
        f"{actor}.ppo_mini_batch_size": 8,
    }
    made = PLAIN.with_overrides(asked)
    assert made.log_prob == Forward(use_dynamic_bsz=True, max_token_len_per_gpu=9000)
    assert made.critic is not None
    assert made.critic.ppo_mini_batch_size == 8
    assert made.reference is None
    own = PLAIN.with_overrides({**asked, f"{rollout}.log_prob_max_token_len_per_gpu": 5000, "critic.enable": False})
    assert own.log_prob.max_token_len_per_gpu == 5000
    assert own.critic is None


REFUSED = [
    ("data.max_respons_length", 5, "Closest: data.max_response_length"),
    ("actor_rollout_ref.actor.strategy", "megatron", "one of fsdp, fsdp2"),
    ("actor_rollout_ref.rollout.enforce_eager", 1, "true or false"),
    ("actor_rollout_ref.rollout.max_num_seqs", True, "a whole number"),
    ("actor_rollout_ref.rollout.max_num_seqs", 2.5, "a whole number"),
    ("actor_rollout_ref.rollout.max_num_seqs", None, "a whole number"),
    ("actor_rollout_ref.rollout.max_num_seqs", 0, "above 0"),
    ("actor_rollout_ref.rollout.gpu_memory_utilization", "much", "a number"),
    ("actor_rollout_ref.rollout.gpu_memory_utilization", 1.5, "above 0 and at most 1"),
    ("trainer.use_v1", "yes", "true or false"),
    ("critic.enable", 1, "true or false"),
]


@pytest.mark.parametrize(("key", "value", "said"), REFUSED)
def test_what_is_no_setting_is_refused(key: str, value: bool | float | str | None, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        PLAIN.with_settings({key: value})


OPEN = ["actor_rollout_ref.rollout.max_model_len", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]


@pytest.mark.parametrize("key", OPEN)
def test_what_may_be_left_open_may(key: str) -> None:
    assert PLAIN.with_settings({key: 7}).with_settings({key: None}).settings[key] is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"schema": 2, "shape": TINY.to_json(), "settings": {}},
        {"schema": 1, "shape": TINY.to_json(), "settings": []},
        {"schema": 1, "shape": {"name": "x"}, "settings": {}},
        {"schema": 1, "shape": {**TINY.to_json(), "family": "gpt2"}, "settings": {}},
    ],
)
def test_other_json_is_no_workload(data: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Workload.from_json(data)


def test_lengths() -> None:
    assert PLAIN.length == 1024
    assert PLAIN.max_model_len == TINY.max_position_embeddings
    assert Workload(shape=TINY, rollout=Rollout(max_model_len=99)).max_model_len == 99


def test_knobs_are_keys_of_the_workload() -> None:
    known = set(PLAIN.settings)
    assert {knob.value for knob in Knob} <= known
    assert PLAIN.knob(Knob.MAX_NUM_SEQS) == 256
    assert PLAIN.knob(Knob.ACTOR_MICRO_BATCH) is None
    assert PLAIN.with_settings({"critic.enable": False}).knob(Knob.CRITIC_TOKENS) is None
    assert PLAIN.with_knob(Knob.GPU_MEMORY_UTILIZATION, 0.25).rollout.gpu_memory_utilization == 0.25


def test_words_of_knobs() -> None:
    assert Knob.GPU_MEMORY_UTILIZATION.direction is Direction.WINDOW
    assert {knob.direction for knob in Knob if knob is not Knob.GPU_MEMORY_UTILIZATION} == {Direction.MORE}
    assert (Knob.GPU_MEMORY_UTILIZATION.step, Knob.MAX_NUM_SEQS.step) == (0.01, 1)
    assert (Knob.MAX_NUM_SEQS.unit, Knob.ACTOR_TOKENS.unit) == (Unit.SEQUENCES, Unit.TOKENS)
    assert Knob.ACTOR_TOKENS.short == "actor.ppo_max_token_len_per_gpu"
    assert len({knob.short for knob in Knob}) == len(Knob)


@pytest.mark.parametrize(("dtype", "size"), [(Dtype.FP32, 4), (Dtype.BF16, 2)])
def test_sizes_of_numbers(dtype: Dtype, size: int) -> None:
    assert dtype.size == size


def test_entropy_is_needed_where_it_weighs_or_is_asked_for() -> None:
    assert not Training().needs_entropy
    assert Training(entropy_coeff=0.1).needs_entropy
    assert Training(calculate_entropy=True).needs_entropy


PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
}
"""What the model cards, or the indexes of the weights, state."""


def test_every_shape_has_the_parameters_that_its_card_states() -> None:
    shapes = load_shapes()
    assert set(shapes) == {*PARAMETERS, "tiny"}
    assert {name: shape.parameters for name, shape in shapes.items() if name != "tiny"} == PARAMETERS


def test_shapes_are_those_that_the_workload_writes() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))
    try:
        from workload.shapes import SHAPES
    finally:
        sys.path.pop(0)
    fields = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    fields += ["vocab_size", "tie_word_embeddings", "max_position_embeddings"]
    for name, written in SHAPES.items():
        known = shape_named(name)
        assert {field: getattr(known, field) for field in fields} == {
            field: getattr(written, field) for field in fields
        }


@pytest.mark.parametrize(
    ("word", "name"),
    [("Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"), ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("qwen3-8B-Base", "qwen3-8b")],
)
def test_shapes_are_found_by_their_hub_names(word: str, name: str) -> None:
    assert shape_named(word).name == name


def test_a_shape_that_is_not_there_has_near_ones() -> None:
    with pytest.raises(UsageError, match=r"qwen2\.5-1\.5b"):
        shape_named("Qwen/Qwen2.5-1.6B")
    with pytest.raises(UsageError, match="Known: "):
        shape_named("zzz")


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def test_a_config_json_is_a_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    shape = Shape.from_config(tmp_path)
    assert (shape.family, shape.num_key_value_heads, shape.head_dim) == (Family.LLAMA, 4, 16)
    assert not shape.tie_word_embeddings
    assert shape.parameters == 2 * 6400 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 128)
    assert shape == Shape.from_json(shape.to_json())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", DataError),
        ("[]", DataError),
        (json.dumps({**CONFIG, "model_type": "mixtral"}), UsageError),
        (json.dumps({key: value for key, value in CONFIG.items() if key != "vocab_size"}), DataError),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), DataError),
        (json.dumps({**CONFIG, "num_hidden_layers": 0}), DataError),
        (json.dumps({**CONFIG, "num_key_value_heads": 3}), DataError),
    ],
)
def test_other_configs_are_refused(text: str, error: type[Exception], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error):
        Shape.from_config(path)
    with pytest.raises(DataError):
        Shape.from_config(tmp_path / "none.json")


ROW = "\n".join(f"{key} = {json.dumps(value)}" for key, value in TINY.to_json().items()) + "\nchecked = 2026-11-30\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[[shape]]\n{ROW}[[shape]]\n{ROW}", "there twice"),
        (f"[[shape]]\n{ROW.replace('qwen2', 'gpt')}", "shape"),
        (f"[[shape]]\n{ROW}color = 1\n", "unknown field"),
    ],
)
def test_shapes_are_checked(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(f"schema = 1\n{text}", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_shapes(path)


KINDS = st.sampled_from(sorted(PLAIN.settings.items()))


@given(KINDS, st.integers(1, 1 << 20))
def test_every_whole_setting_comes_back(item: tuple[str, object], value: int) -> None:
    key, before = item
    if isinstance(before, bool) or not isinstance(before, int):
        return
    changed = PLAIN.with_settings({key: value})
    assert changed.settings == {**PLAIN.settings, key: value}
    assert Workload.from_json(changed.to_json()) == changed


def test_attention_has_transformers_words() -> None:
    assert [str(item) for item in Attention] == ["flash_attention_2", "sdpa", "eager"]
