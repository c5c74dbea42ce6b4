"""Variants and pairings: what a launch is told on either side, and what names it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from bench.errand import both_sides, command, limits_of, scripts_digest, variables
from bench.lane import NoDriver, lane, observed
from bench.recipes import Kind, recipe_named
from bench.sample import Side
from bench.toggle import Standing, toggle_named
from bench.variant import Pairing, in_cell, of_cells, of_settings, of_toggle, recorded_release
from matrix.errors import ToolError, UsageError
from matrix.gpus.inventory import Gpu, Inventory
from matrix.gpus.nvml import GIB
from matrix.gpus.pool import Pool
from matrix.probing.folder import probes_folder
from tests.unit.bench_launches import CELL, FakeDriver, FakeGauges, environment, pairing, place
from tests.unit.run_fakes import AT

RELEASE = recorded_release(Version("0.9.1"))
assert RELEASE is not None


def toggled(name: str, recipe: str = "ppo-short") -> Pairing:
    """Return the pairing of a toggle on verl 0.9.1."""
    assert RELEASE is not None
    return of_toggle(toggle_named(name), recipe_named(recipe), RELEASE, CELL)


def test_a_toggle_is_off_on_side_a_and_on_on_side_b() -> None:
    found = toggled("checkpointing-actor")
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    assert (found.a.overrides, found.b.overrides) == ((f"{key}=False",), (f"{key}=True",))
    assert (found.a.name, found.b.name) == ("checkpointing-actor=off", "checkpointing-actor=on")
    assert (found.a.side, found.b.side, found.gpus, found.cells) == (Side.A, Side.B, 1, (CELL,))
    assert found.is_live
    assert found.standing is not None
    assert found.standing.changed == {key: (False, True)}


def test_a_toggle_says_what_it_needs_of_the_plan() -> None:
    ulysses, compiled = toggled("ulysses"), toggled("torch-compile")
    assert (ulysses.gpus, ulysses.a.planned["devices"]) == (2, 2)
    for side in Side:
        words = compiled.of(side).words
        assert words[words.index("--graphs") + 1] == "default"
    words = ulysses.a.words
    assert words[words.index("--devices") + 1] == "2"
    assert words[words.index("--steps") + 1] == "6"
    assert words[:2] == ("--device", "cuda")
    assert words[words.index("--set") + 1] == "actor_rollout_ref.model.use_remove_padding=True"


@pytest.mark.parametrize(
    ("name", "release", "standing"),
    [("torch-compile", "0.2", Standing.REFUSED), ("ulysses-critic-old-key", "0.9.1", Standing.INERT)],
)
def test_what_is_not_live_is_no_pairing_to_launch(name: str, release: str, standing: Standing) -> None:
    found = recorded_release(Version(release))
    assert found is not None
    recipe = recipe_named("ppo-short") if release != "0.2" else None
    if recipe is None:
        # No recipe runs before 0.6.0, whatever the toggle.
        with pytest.raises(UsageError, match="ppo-short needs verl"):
            of_toggle(toggle_named(name), recipe_named("ppo-short"), found, CELL)
        return
    made = of_toggle(toggle_named(name), recipe, found, CELL)
    assert made.standing is not None
    assert (made.is_live, made.standing.standing) == (False, standing)


def test_a_toggle_of_cells_is_no_toggle_of_settings() -> None:
    with pytest.raises(UsageError, match="compares two cells"):
        toggled("vllm-0.24-0.20")


def test_a_critic_key_is_inert_without_a_critic() -> None:
    assert RELEASE is not None
    grpo = replace(recipe_named("ppo-short"), estimator="grpo")
    assert not of_toggle(toggle_named("checkpointing-critic"), grpo, RELEASE, CELL).is_live


def test_two_cells() -> None:
    found = of_cells("vllm", recipe_named("ppo-short"), "a", "b")
    assert found.cells == ("a", "b")
    assert (found.a.name, found.b.name) == ("a", "b")
    assert found.a.digest == found.b.digest
    assert found.is_live


def test_words_on_a_cpu() -> None:
    found = pairing(("a=1",))
    assert found.a.words == ("--device", "cpu", "--steps", "3", "--set", "trainer.save_freq=-1", "--set", "a=1")
    assert found.gpus == 0


def test_digests_name_what_is_run() -> None:
    one, other = pairing(("a=1",)), pairing(("a=2",))
    assert one.a.digest != other.a.digest
    assert one.digest != other.digest
    assert one.b.digest == other.b.digest
    assert pairing(("a=1",)).digest == one.digest
    assert pairing(("a=1",), cell="x").digest != one.digest
    with pytest.raises(UsageError, match="slash"):
        pairing(name="a/b")


def test_recorded_releases(tmp_path: Path) -> None:
    assert recorded_release(Version("0.0.1")) is None
    assert recorded_release(Version("0.9.1"), tmp_path / "none") is None


@pytest.mark.parametrize("kind", list(Kind))
def test_scripts_lie_where_they_are_looked_for(kind: Kind) -> None:
    if kind is Kind.PPO:
        assert in_cell(probes_folder(), kind).is_file()
    assert in_cell(Path("/p"), kind).parent.parent == Path("/p")


def test_the_command_of_a_side(tmp_path: Path) -> None:
    asked = place(pairing(("a=1",)), Side.A)
    cells = {CELL: environment()}
    found = command(asked, cells, Path("/p"), tmp_path / "out", limits_of(asked))
    assert found[1:6] == ["/p/ppo/launch.py", "--out", str(tmp_path / "out"), "--limit", "1800"]
    assert not (tmp_path / "out").exists()


def test_the_plan_of_both_sides(tmp_path: Path) -> None:
    made = of_settings("t", recipe_named("update-long"), CELL, ("a=1",), ("a=2",), plan={"devices": 2})
    asked = place(made, None)
    cells = {CELL: environment()}
    found = command(asked, cells, Path("/p"), tmp_path / "out", limits_of(asked))
    assert found[1] == "/p/benches/update.py"
    plan = json.loads(Path(found[found.index("--plan") + 1]).read_text(encoding="utf-8"))
    assert plan == json.loads(json.dumps(both_sides(asked, cells, limits_of(asked))))
    assert {name: plan[name] for name in ("kind", "shape", "prompt", "response", "batch", "repeats", "lengths")} == {
        "kind": "update", "shape": "qwen2.5-0.5b", "prompt": 4096, "response": 4096, "batch": 32, "repeats": 20,
        "lengths": "full",
    }  # fmt: skip
    assert (plan["gpus"], plan["critic"], plan["off"], plan["on"]) == (2, True, ["a=1"], ["a=2"])
    assert plan["seconds"] < plan["limit"] == 600
    assert "python" not in plan


def test_a_launch_on_a_cpu_sees_no_gpu() -> None:
    caches = Path("/c")
    assert variables("cpu", "0", caches)["CUDA_VISIBLE_DEVICES"] == ""
    assert variables("cuda", "0,1", caches)["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_digest_of_scripts_follows_them(tmp_path: Path) -> None:
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo" / "launch.py").write_text("1", encoding="utf-8")
    before = scripts_digest(tmp_path)
    (tmp_path / "other.py").write_text("1", encoding="utf-8")
    assert scripts_digest(tmp_path) == before
    (tmp_path / "ppo" / "launch.py").write_text("2", encoding="utf-8")
    assert scripts_digest(tmp_path) != before


def test_a_lane_on_a_cpu_names_no_gpu(tmp_path: Path) -> None:
    with lane(0, devices=tmp_path) as found:
        assert (found.gpus, found.places, found.gauges, found.visible) == ((), (), None, "")
        assert found.machine.kind.endswith("no GPU")
        facts = found.facts(environment())
    assert (facts["gpus"], facts["driver"], facts["count"]) == ([], None, 0)
    silent = NoDriver()
    assert [silent.gpus(), silent.used(0), silent.holders(0), silent.facts(0), silent.links(0, 1)] == [
        [],
        0,
        [],
        {},
        {},
    ]


def test_a_lane_of_gpus_holds_them(tmp_path: Path) -> None:
    driver = FakeDriver(count=2)
    held = tuple(
        Gpu(index=item.index, uuid=item.uuid, name=item.name, memory=140 * GIB, capability=(9, 0))
        for item in driver.gpus()
    )
    pool = Pool(inventory=Inventory(gpus=held), folder=tmp_path / "leases")
    warmed: list[str] = []
    with lane(2, asked=driver, gauges=FakeGauges(), pool=pool, warmed=warmed.append) as found:
        assert (found.visible, found.places, warmed) == ("0,1", (0, 1), ["0,1"])
        assert pool.granted() == {0, 1}
        assert found.machine.gpus == ("NVIDIA H200",) * 2
        assert found.settling().others_mib() == 0
        observation = observed(environment(), "sha256:1", found.machine, found.facts(environment()), AT)
        assert observation.question.probe == "machine"
        assert observation.detail["fingerprint"] == observation.question.reads["fingerprint"]
    assert pool.granted() == frozenset()
    with (
        pytest.raises(ToolError, match="needs 3 GPUs"),
        lane(3, asked=driver, gauges=FakeGauges(), pool=pool, warmed=warmed.append),
    ):
        pass
