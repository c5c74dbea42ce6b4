"""Questions: words that name them, the values they search, what the scripts are told, what is foretold and planned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.errors import DataError, UsageError
from matrix.memory.phase import GIB
from matrix.memory.shape import shape_named
from matrix.memory.workload import Value, Workload
from matrix.thresholds.cap import Cap, cap_named
from matrix.thresholds.foretell import foretold
from matrix.thresholds.knobs import BLOCK, KNOBS, Script, knob_named
from matrix.thresholds.plan import planned
from matrix.thresholds.question import Asked, asked, chosen, load_questions, parse_setting, parse_value
from matrix.thresholds.spec import by_what, held, spec_of

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
SMALL = "qwen2.5-0.5b"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        (MICRO, MICRO),
        ("actor.ppo_micro_batch_size_per_gpu", MICRO),
        ("max_num_seqs", f"{ROLLOUT}.max_num_seqs"),
        ("data.max_response_length", "data.max_response_length"),
    ],
)
def test_knob_is_named_by_its_key_or_its_end(word: str, key: str) -> None:
    assert knob_named(word).key == key


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("ppo_micro_batch_size_per_gpu", "may be actor_rollout_ref.actor.ppo_micro"),
        ("max_num_seq", "names no knob"),
        ("zzz", "names no knob"),
    ],
)
def test_word_that_names_no_knob_is_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        knob_named(word)


@pytest.mark.parametrize(
    ("knob", "settings", "low", "high"),
    [
        (MICRO, {f"{ACTOR}.ppo_mini_batch_size": 128}, 1, 128),
        (MICRO, {f"{ACTOR}.ppo_mini_batch_size": 4096}, 1, 1024),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", {f"{ACTOR}.ppo_mini_batch_size": 8}, 1024, 8192),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", {"data.train_batch_size": 64, f"{ROLLOUT}.n": 2}, 1, 128),
        ("critic.ppo_infer_max_token_len_per_gpu", {"critic.ppo_mini_batch_size": 16}, 1024, 16384),
        ("data.max_response_length", {}, BLOCK, 32768 - 512),
        ("gpu_memory_utilization", {}, 0.05, 0.95),
        ("max_num_seqs", {}, 16, 16384),
        ("max_num_batched_tokens", {}, 16, 524288),
    ],
)
def test_values_end_where_the_batch_the_model_or_the_search_does(
    knob: str, settings: dict[str, Value], low: float, high: float
) -> None:
    values = asked(SMALL, knob, None, settings).values
    assert (values[0], values[-1]) == (low, high)
    assert list(values) == sorted(set(values))


def test_prompt_that_fills_the_model_leaves_no_values() -> None:
    with pytest.raises(UsageError, match="leaves no room"):
        _ = asked(SMALL, "data.max_response_length", None, {"data.max_prompt_length": 32760}).values


def test_knob_of_a_critic_needs_one() -> None:
    with pytest.raises(UsageError, match="where there is a critic"):
        asked(SMALL, "critic.ppo_max_token_len_per_gpu", None, {"critic.enable": False})


@pytest.mark.parametrize(
    ("settings", "cap", "beside", "name"),
    [
        ({}, None, 0, f"threshold/{SMALL}:512+512/{MICRO}/whole"),
        ({MICRO: 4}, "A100-80GB", 0, f"threshold/{SMALL}:512+512/{MICRO}/A100-80GB"),
        (
            {f"{ACTOR}.fsdp_config.param_offload": True, "data.max_prompt_length": 256},
            "24GiB",
            2**30,
            f"threshold/{SMALL}:256+512,actor.param_offload=true/{MICRO}/24GiB-1024MiB",
        ),
        ({"critic.enable": False}, None, 0, f"threshold/{SMALL}:512+512,no-critic/{MICRO}/whole"),
        ({f"{ROLLOUT}.n": 4}, None, 0, f"threshold/{SMALL}:512+512,rollout.n=4/{MICRO}/whole"),
        ({"data.train_batch_size": 64}, None, 0, f"threshold/{SMALL}:512+512,train_batch_size=64/{MICRO}/whole"),
    ],
)  # fmt: skip
def test_question_is_named_by_what_differs(settings: dict[str, Value], cap: str | None, beside: int, name: str) -> None:
    assert asked(SMALL, MICRO, cap, settings, beside=beside).name == name


@pytest.mark.parametrize(
    ("word", "pair"),
    [
        ("a.b=4", ("a.b", 4)),
        ("+a.b=0.5", ("a.b", 0.5)),
        ("a=True", ("a", True)),
        ("a=null", ("a", None)),
        ("a=fsdp2", ("a", "fsdp2")),
        ("a=b=c", ("a", "b=c")),
    ],
)
def test_setting_is_read_as_hydra_would(word: str, pair: tuple[str, Value]) -> None:
    assert parse_setting(word) == pair


@pytest.mark.parametrize("word", ["a", "=4", ""])
def test_setting_without_a_key_or_a_value_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_setting(word)


def test_value_false_is_no_text() -> None:
    assert parse_value("false") is False


def test_shipped_questions_can_all_be_asked_and_foretold() -> None:
    listed = load_questions()
    assert listed[0].id == "actor-80"
    assert len({item.asked.name for item in listed}) == len(listed)
    for item in listed:
        assert foretold(item.asked), item.id
        assert item.asked.why
    assert [item.id for item in chosen(listed, ["actor-24", "actor-80"])] == ["actor-80", "actor-24"]
    assert chosen(listed, []) == list(listed)
    with pytest.raises(UsageError, match="no question `actor-25`"):
        chosen(listed, ["actor-25"])


QUESTION = '[[question]]\nid = "a"\nwhy = "w"\nmodel = "qwen2.5-0.5b"\nknob = "max_num_seqs"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (QUESTION + QUESTION, "`a` is there twice"),
        (QUESTION.replace("max_num_seqs", "max"), "names no knob"),
        (QUESTION + 'cap = "A1000"\n', "There is no card"),
        (QUESTION + "more = 1\n", "unknown field"),
        (QUESTION + '[question.settings]\n"a.b" = 1\n', "does not know the key"),
    ],
)
def test_list_that_is_wrong_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(f"schema = 1\n{text}", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_questions(path)


def test_list_keeps_what_it_says_of_a_question(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(
        f'schema = 1\n{QUESTION}beside_mib = 512\n[question.settings]\n"data.train_batch_size" = 8\n', encoding="utf-8"
    )
    (item,) = load_questions(path, repeats=3)
    assert (item.asked.beside, item.asked.repeats, item.settings) == (512 * 2**20, 3, {"data.train_batch_size": 8})
    assert item.asked.cap is None


def test_cap_says_how_a_larger_card_stood_in() -> None:
    cap = cap_named("24GiB")
    assert cap == Cap(name="24GiB", bytes=24 * GIB)
    assert cap.words(140 * GIB, "a fraction") == "capped: 24.0 of 140.0 GiB, by a fraction"
    assert cap.words(24 * GIB, "a fraction") == "not capped: the card has 24.0 GiB"
    assert cap_named("a100-80g").name == "A100-80GB"
    assert by_what(Script.UPDATE) != by_what(Script.ROLLOUT)


def test_spec_speaks_verls_keys_and_names_the_defaults(tmp_path: Path) -> None:
    question = asked(SMALL, f"{ACTOR}.ppo_max_token_len_per_gpu", "24GiB", {"data.max_prompt_length": 128})
    spec = spec_of(question, device="cuda", models=tmp_path)
    settings = spec["settings"]
    assert isinstance(settings, dict)
    assert settings[f"{ACTOR}.use_dynamic_bsz"] is True
    assert settings[MICRO] == 1
    assert f"{ACTOR}.use_dynamic_bsz" not in spec["defaults"]  # type: ignore[operator]
    assert "actor_rollout_ref.model.use_remove_padding" in spec["defaults"]  # type: ignore[operator]
    assert (spec["prompt"], spec["response"], spec["cap"], spec["critic"]) == (128, 512, 24 * GIB, True)
    assert spec["held"] == {}
    assert json.loads(json.dumps(spec)) == spec
    on_cpu = spec_of(question, device="cpu", models=tmp_path)["settings"]
    assert isinstance(on_cpu, dict)
    assert on_cpu[f"{ACTOR}.strategy"] == "fsdp2"


def test_rollout_is_told_what_the_trainer_holds_beside_it(tmp_path: Path) -> None:
    question = asked(SMALL, "max_num_seqs", "A100-80GB")
    told = spec_of(question, device="cuda", models=tmp_path)["held"]
    assert isinstance(told, dict)
    weights = 4 * shape_named(SMALL).parameters
    assert 2 * weights < told["rollout init"] < told["generation"] < told["wake-up"] < 10 * weights
    with pytest.raises(UsageError, match="for a card"):
        held(asked(SMALL, "max_num_seqs"))


@pytest.mark.parametrize("knob", [MICRO, "critic.ppo_infer_max_token_len_per_gpu", "data.max_response_length"])
def test_larger_card_is_foretold_to_hold_more(knob: str) -> None:
    settings: dict[str, Value] = {f"{ACTOR}.ppo_mini_batch_size": 1024, "critic.ppo_mini_batch_size": 1024, MICRO: 2}
    guesses = [foretold(asked(SMALL, knob, card, settings)) for card in ("24GiB", "40GiB")]
    assert guesses[0] is not None
    assert guesses[1] is not None
    assert guesses[0] < guesses[1]


def test_nothing_is_foretold_without_a_card_or_where_nothing_fits() -> None:
    assert foretold(asked(SMALL, MICRO)) is None
    assert foretold(asked("qwen2.5-7b", MICRO, "24GiB")) is None
    assert foretold(asked(SMALL, MICRO, "24GiB", beside=22 * GIB)) is None


def test_whole_launch_is_neither_foretold_nor_quick() -> None:
    one = asked(SMALL, MICRO, "24GiB")
    whole = replace(one, knob=replace(one.knob, script=Script.STEP))
    assert foretold(whole) is None
    assert planned([("a", whole, None)], None)[0].seconds > 1000
    assert by_what(Script.STEP) == by_what(Script.ROLLOUT)


def test_knob_that_the_model_does_not_know_is_not_foretold() -> None:
    odd = KNOBS[MICRO]
    strange = type(odd)(key="a.b", script=odd.script, steps=odd.steps, top=odd.top, parts=odd.parts)
    question = Asked(knob=strange, workload=Workload(shape=shape_named(SMALL)), cap=cap_named("24GiB"))
    assert foretold(question) is None


def test_plan_counts_and_passes_over_what_does_not_fit() -> None:
    small = asked(SMALL, MICRO, "24GiB", repeats=1)
    large = asked("qwen2.5-1.5b", MICRO, "80GiB", repeats=2)
    engine = asked(SMALL, "max_num_seqs", "80GiB", repeats=1)
    length = asked(SMALL, "data.max_response_length", "24GiB", repeats=1)
    rows = planned([("a", small, 24.0), ("b", large, 90.0), ("c", engine, None), ("d", length, 4096.0)], 2.0)
    assert [row.fits for row in rows] == [True, False, False, True]
    assert rows[0].seconds < rows[1].seconds
    assert rows[0].trials < rows[1].trials
    assert rows[2].seconds == rows[2].trials * 28
    assert all(row.fits for row in planned([("b", large, 90.0)], None))
    assert json.loads(json.dumps(rows[0].to_json()))["trials"] == rows[0].trials
