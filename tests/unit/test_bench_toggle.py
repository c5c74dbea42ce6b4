"""Recipes and toggles over the releases of verl: hydra composes recorded configurations of all of them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from packaging.version import Version

from bench.composed import RECORD as SHIPPED
from bench.composed import Recorded, load, nested
from bench.recipes import RECIPES, Kind, recipe_named
from bench.toggle import Judged, Side, Standing, judge, load_toggles, toggle_named
from matrix.config.wiring import load_wiring
from matrix.errors import DataError, UsageError

RECORD = load(SHIPPED)
LOGGED = [text for text in RECORD if Version(text) >= Version("0.6.0")]
INERT, LIVE, REFUSED = Standing.INERT, Standing.LIVE, Standing.REFUSED


@functools.cache
def release(text: str) -> Recorded:
    return Recorded(Version(text), RECORD[text])


@functools.cache
def judged(toggle: str, text: str, recipe: str = "ppo-short") -> Judged:
    return judge(toggle_named(toggle), recipe_named(recipe), release(text), load_wiring())


@pytest.mark.parametrize("text", list(RECORD))
def test_every_toggle_has_a_key_that_the_release_has_or_is_refused_by_name(text: str) -> None:
    keys, version = RECORD[text]["keys"], Version(text)
    assert isinstance(keys, dict)
    for toggle in load_toggles():
        for side in Side:
            if toggle.name == "torch-compile" and version < Version("0.3"):
                with pytest.raises(UsageError, match="use_torch_compile"):
                    toggle.words(side, version)
                continue
            for word in toggle.words(side, version):
                key = word.partition("=")[0]
                assert key in keys or key.startswith("++actor_rollout_ref.model.override_config."), (text, word)


@pytest.mark.parametrize("text", LOGGED)
def test_every_recipe_composes_with_every_toggle(text: str) -> None:
    version, ran = Version(text), 0
    for make in RECIPES:
        recipe = make()
        if not recipe.releases.contains(version):
            continue
        words = list(recipe.words(version))
        for toggle in load_toggles():
            words += toggle.words(Side.ON, version)
        assert release(text).compose("ppo_trainer", words).refusal == "", recipe.name
        ran += 1
    assert ran >= len(RECIPES) - sum(make().device == "cpu" for make in RECIPES)
    off = [word for toggle in load_toggles() for word in toggle.words(Side.OFF, version)]
    assert release(text).compose("ppo_trainer", off).refusal == ""


STANDINGS = [
    ("ulysses-actor", "0.6.1", LIVE, "actor_rollout_ref.actor.ulysses_sequence_parallel_size"),
    ("ulysses-critic", "0.7.1", LIVE, "critic.ulysses_sequence_parallel_size"),
    ("ulysses-critic", "0.8.0", LIVE, "critic.fsdp.ulysses_sequence_parallel_size"),
    ("ulysses-critic", "0.9.1", LIVE, "critic.fsdp.ulysses_sequence_parallel_size"),
    ("ulysses-critic-old-key", "0.7.1", LIVE, "critic.ulysses_sequence_parallel_size"),
    ("ulysses-critic-old-key", "0.8.0", INERT, "the critic stays at 1"),
    ("ulysses-critic-old-key", "0.9.1", INERT, "the critic stays at 1"),
    ("chunked-prefill", "0.9.1", LIVE, "actor_rollout_ref.rollout.enable_chunked_prefill"),
    ("batched-tokens", "0.6.1", LIVE, "actor_rollout_ref.rollout.max_num_batched_tokens"),
    ("checkpointing-critic", "0.9.1", LIVE, "critic.model.enable_gradient_checkpointing"),
    ("dynamic-batch", "0.8.0", LIVE, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"),
    ("dynamic-batch-critic", "0.7.1", LIVE, "critic.use_dynamic_bsz"),
    ("dynamic-batch-critic", "0.9.1", INERT, "packs by tokens"),
    ("flash-attention", "0.6.0", INERT, "flash_attention_2 whatever it says"),
    ("flash-attention", "0.9.1", LIVE, "actor_rollout_ref.model.override_config.attn_implementation"),
    ("torch-compile", "0.7.1", LIVE, "actor_rollout_ref.actor.use_torch_compile"),
    ("torch-compile", "0.9.1", LIVE, "actor_rollout_ref.actor.fsdp_config.use_torch_compile"),
    ("free-cache", "0.9.1", LIVE, "actor_rollout_ref.rollout.free_cache_engine"),
    ("vllm-0.24-0.20", "0.9.1", LIVE, "cell"),
]


@pytest.mark.parametrize(("toggle", "text", "standing", "said"), STANDINGS)
def test_whether_a_toggle_does_anything(toggle: str, text: str, standing: Standing, said: str) -> None:
    found = judged(toggle, text)
    assert found.standing is standing, found
    assert said in (found.changed if standing is LIVE else found.why)
    # What follows from it for roles that nobody has is told, and does not make a toggle live.
    assert not any(key.startswith("actor_rollout_ref.ref.") for key in found.changed)


@pytest.mark.parametrize(
    ("toggle", "recipe", "standing"),
    [
        ("chunked-prefill", "update-short", INERT),
        ("checkpointing-actor", "rollout-short", INERT),
        ("chunked-prefill", "rollout-short", LIVE),
        ("checkpointing-actor", "update-short", LIVE),
    ],
)
def test_a_bench_that_does_not_run_the_phase(toggle: str, recipe: str, standing: Standing) -> None:
    assert judged(toggle, "0.9.1", recipe).standing is standing


def toggles(folder: Path, text: str) -> Path:
    path = folder / "toggles.toml"
    path.write_text(f"schema = 1\n{text}", encoding="utf-8")
    return path


def entry(key: str, off: str = "1", on: str = "2", more: str = "", releases: str = ">=0.2") -> str:
    return (
        f'[[toggle]]\nname = "x"\nwhat = "x"\n{more}\n[[toggle.key]]\nkey = "{key}"\nreleases = "{releases}"\n'
        f'off = "{off}"\non = "{on}"\n'
    )


CASES = [
    (entry("trainer.total_epochs", on="1"), INERT, "same configuration"),
    (entry("trainer.there_is_no_such"), REFUSED, "there_is_no_such"),
    (entry("trainer.n_gpus_per_node", on="${"), REFUSED, ""),
    (entry("trainer.total_epochs", releases="<0.5"), REFUSED, "trainer.total_epochs in <0.5"),
    (entry("++trainer.nobody_reads_this_one"), INERT, "no code reads"),
    (entry("actor_rollout_ref.actor.fsdp_config.use_torch_compile", "False", "True"), INERT, "TORCHDYNAMO_DISABLE"),
]


@pytest.mark.parametrize(("text", "standing", "said"), CASES)
def test_toggles_that_do_nothing(text: str, standing: Standing, said: str, tmp_path: Path) -> None:
    (toggle,) = load_toggles(toggles(tmp_path, text))
    found = judge(toggle, recipe_named("ppo-short"), release("0.9.1"))
    assert found.standing is standing
    assert said in found.why


def test_a_critic_that_is_not_trained(tmp_path: Path) -> None:
    from dataclasses import replace

    recipe = replace(recipe_named("ppo-short"), estimator="grpo")
    found = judge(toggle_named("checkpointing-critic"), recipe, release("0.9.1"))
    assert (found.standing, "trains no critic" in found.why) == (INERT, True)


def test_a_recipe_that_a_release_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs verl"):
        judge(toggle_named("ulysses"), recipe_named("ppo-short"), release("0.5.0"))
    bare = Recorded(Version("0.9.1"), {"keys": {"trainer.nnodes": 1}, "reads": []})
    with pytest.raises(UsageError, match="does not compose"):
        judge(toggle_named("ulysses"), recipe_named("ppo-short"), bare)


BROKEN = [
    (entry("a.b") + entry("a.b"), "there twice"),
    (entry("a.b", more='plan = ["graphs"]'), "NAME=VALUE"),
    (entry("a.b", more='off = ["vllm==1"]\non = ["vllm==2"]'), "one of both"),
    (entry("a.b", releases="new"), "not a range"),
    ('[[toggle]]\nname = "x"\nwhat = "x"\n', "one of both"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_the_data_of_toggles_is_checked(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        load_toggles(toggles(tmp_path, text))


def test_names_that_are_none_are_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="ulysses"):
        toggle_named("ulises")
    with pytest.raises(UsageError, match="ppo-short"):
        recipe_named("ppo_short")


def test_a_recipe_names_its_hardware_and_its_needs() -> None:
    recipes = [make() for make in RECIPES]
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert {recipe.kind for recipe in recipes} == set(Kind)
    for recipe in recipes:
        assert recipe.hardware
        assert recipe.steps > 2
        assert set(recipe.plan) >= {"shape", "steps", "batch", "prompt", "response"}
    assert toggle_named("ulysses").plan_for(recipes[0]) == {"devices": 2}
    assert toggle_named("torch-compile").plan_for(recipes[0]) == {"graphs": "default", "devices": 1}
    assert "TORCHDYNAMO_DISABLE" not in recipes[0].environment({"graphs": "default"})


def test_a_record_that_is_none() -> None:
    with pytest.raises(TypeError, match="no keys"):
        Recorded(Version("1"), {"keys": 1, "reads": []})
    with pytest.raises(ValueError, match="below a value"):
        nested({"a": 1, "a.b": 2})


def test_the_record_is_written_from_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import composed
    from matrix.index.simple import SimpleIndex
    from tests.unit.fakes import FakeIndex, FakeRelease

    files = {
        "verl/trainer/config/ppo_trainer.yaml": "trainer:\n  nodes: 1\n  unread: 2\n  empty: {}\n",
        "verl/main.py": "print(config.trainer.nodes)\n",
    }
    index = FakeIndex({"verl": {"0.9.1": FakeRelease(files=files)}})
    monkeypatch.setattr(SimpleIndex, "from_environment", lambda **_: index)
    monkeypatch.setenv("VERL_MATRIX_HOME", str(tmp_path / "home"))
    words = ["0.9.1", "--out", str(tmp_path / "out" / "record.json.gz")]
    assert composed.main(words) == 1
    assert composed.main(words) == 0
    assert "the same, 1 releases" in capsys.readouterr().out
    found = load(tmp_path / "out" / "record.json.gz")["0.9.1"]
    assert found == {"keys": {"trainer.nodes": 1, "trainer.unread": 2, "trainer.empty": {}}, "reads": ["nodes"]}
    assert Recorded(Version("0.9.1"), found).compose("", ["trainer.nodes=3"]).keys["trainer.nodes"] == 3
