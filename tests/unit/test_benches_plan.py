"""The plan of a cheap bench: what is refused, in which order repeats run, what a side is told and runs in."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

COMPAT = Path(__file__).parents[1] / "compat"
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import plan as plans  # noqa: E402
from benches import surroundings  # noqa: E402
from benches.taking_turns import chunked  # noqa: E402

from bench import sample  # noqa: E402
from tests.unit import benches_side  # noqa: E402


@pytest.mark.parametrize("pairs", [1, 2, 3, 8, 20])
def test_order_is_that_of_the_comparison(pairs: int) -> None:
    ours = plans.order(pairs, ("off", "on"))
    assert ours == tuple({sample.Side.A: "off", sample.Side.B: "on"}[side] for side in sample.order(pairs))


def test_repeats_have_places_and_those_that_warm_up_lie_before_them() -> None:
    turns = list(plans.made({"repeats": 2, "warm_up": 2, "on": []}, "update").turns())
    assert [(turn.variant, turn.place) for turn in turns] == [
        ("off", -4), ("on", -3), ("on", -2), ("off", -1), ("off", 0), ("on", 1), ("on", 2), ("off", 3),
    ]  # fmt: skip
    assert [turn.warm_up for turn in turns] == [True] * 4 + [False] * 4
    alone = list(plans.made({"repeats": 2, "warm_up": 1}, "update").turns())
    assert [(turn.variant, turn.place) for turn in alone] == [("off", -1), ("off", 0), ("off", 1)]


@given(st.integers(1, 30), st.integers(0, 3))
def test_blocks_hold_the_same_repeats_as_the_order(repeats: int, warm_up: int) -> None:
    turns = list(plans.made({"repeats": repeats, "warm_up": warm_up, "on": []}, "update").turns())
    found = chunked(turns, warm_up)
    real = [turn for turn in found if not turn.warm_up]
    assert sorted(real, key=lambda turn: turn.place) == [turn for turn in turns if not turn.warm_up]
    changes = sum(one.variant != other.variant for one, other in itertools.pairwise(found))
    assert changes == (1 if repeats == 1 else 2)
    assert sum(turn.warm_up for turn in found) == warm_up * (changes + 1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"repeat": 3}, "a plan has no repeat; it has batch"),
    ({"schema": 2}, "schema 2"),
    ({"kind": "rollout"}, "a plan of rollout, not of update"),
    ({"repeats": 0}, "repeats is a number of 1 or more, not 0"),
    ({"batch": 2.5}, "batch is a number"),
    ({"gpus": True}, "gpus is a number"),
    ({"warm_up": -1}, "warm_up is a number of 0 or more"),
    ({"lengths": "short"}, "lengths is one of full, data"),
    ({"graphs": "all"}, "graphs is one of"),
    ({"phases": ["gen"]}, "there is no phase gen"),
    ({"phases": ["values"], "critic": False}, "none of the phases runs"),
    ({"off": "a=b"}, "off is a list of texts"),
    ({"on": [1]}, "on is a list of texts"),
    ({"python": {"on": "python"}}, "python names the side on"),
    ({"seconds": 600, "limit": 500}, "not above the limit"),
]


@pytest.mark.parametrize(("found", "said"), WRONG)
def test_plan_that_cannot_be_meant_is_refused(found: dict[str, Any], said: str) -> None:
    with pytest.raises(plans.PlanError, match=said):
        plans.made(found, "update")


@pytest.mark.parametrize(("text", "said"), [("{", "is no JSON"), ("[1]", "holds no table")])
def test_file_that_holds_no_plan_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(plans.PlanError, match=said):
        plans.read(path, "update")


def test_plan_is_told_as_it_was_read(tmp_path: Path) -> None:
    path = benches_side.plan(tmp_path, phases=None, lengths="data")
    plan = plans.read(path, "update")
    assert json.loads(json.dumps(plan.told()))["off"] == ["a.b=False"]
    assert plans.made(json.loads(json.dumps(plan.told())), "update") == plan


def test_phases_of_a_critic_are_left_out_where_there_is_none() -> None:
    assert plans.made({}, "update").ran == ("old_log_prob", "values", "update_critic", "update_actor")
    assert plans.made({"critic": False}, "update").ran == ("old_log_prob", "update_actor")
    assert plans.made({"phases": ["update_actor", "values"]}, "update").ran == ("values", "update_actor")


ROLLOUT = "actor_rollout_ref.rollout"
GRAPHS = f"+{ROLLOUT}.engine_kwargs.vllm.compilation_config={{}}"


def test_words_of_a_side_are_followed_by_where_the_model_of_the_launch_lies(tmp_path: Path) -> None:
    path = "actor_rollout_ref.model.path=/bench/model"
    plan = plans.made(
        {"common": ["data.max_prompt_length=9", "hydra.run.dir=/x", GRAPHS], "off": [path], "on": [path, "k=on"]},
        "update",
    )
    found = surroundings.words(plan, "cuda", "on", tmp_path)
    assert found[-2:] == (f"actor_rollout_ref.model.path={tmp_path}", f"critic.model.path={tmp_path}")
    assert found.index("k=on") < len(found) - 2
    assert "k=on" not in surroundings.words(plan, "cuda", "off", tmp_path)
    assert "hydra.run.dir=/x" not in found
    assert GRAPHS in found
    # What a plan says comes after what its lengths imply.
    assert found.index("data.max_prompt_length=512") < found.index("data.max_prompt_length=9")
    assert f"{ROLLOUT}.max_model_len=768" in found


def test_on_a_cpu_the_device_has_the_last_word_but_for_what_is_toggled(tmp_path: Path) -> None:
    eager, padding = f"{ROLLOUT}.enforce_eager", "actor_rollout_ref.model.use_remove_padding"
    plan = plans.made(
        {"common": [GRAPHS, f"{padding}=True"], "off": [f"{eager}=False"], "on": [f"{eager}=True"]}, "rollout"
    )
    for variant, value in (("off", "False"), ("on", "True")):
        found = surroundings.words(plan, "cpu", variant, tmp_path)
        last = plans.keyed(found)
        assert (last[eager], last[padding], GRAPHS in found) == (value, "False", False)
        assert len(found) == len(set(found))
    alone = plans.made({"off": [f"{eager}=False"]}, "rollout")
    assert plans.keyed(surroundings.words(alone, "cpu", "off", tmp_path))[eager] == "False"


def test_side_has_the_environment_of_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    plan = plans.made({"env": {"on": {"MINE": "1"}}, "on": [], "graphs": "default"}, "update")
    found = surroundings.environment(plan, "cuda", "on", tmp_path)
    assert (found["MINE"], "RANK" in found, "TORCHDYNAMO_DISABLE" in found) == ("1", False, False)
    assert found["PYTHONPATH"].split(":")[0].endswith("compat")
    assert "VERL_PLATFORM" not in found
    cpu = surroundings.environment(plan, "cpu", "off", tmp_path)
    assert (cpu["VERL_PLATFORM"], cpu["CUDA_VISIBLE_DEVICES"], "MINE" in cpu) == ("cpu", "", False)
