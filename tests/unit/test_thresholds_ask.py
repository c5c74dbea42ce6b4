"""Asking, keeping and telling: a search through real children of a made-up script, on a card from a made-up driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import thresholds as command
from matrix.cli.main import main
from matrix.errors import NothingRanError, ToolError
from matrix.gpus.inventory import Gpu, Inventory
from matrix.gpus.pool import Pool
from matrix.home import Home
from matrix.job import now
from matrix.provision.environment import Environment
from matrix.store import Store
from matrix.thresholds import ask as asking_module
from matrix.thresholds.ask import Bench, ask_one, asking, in_turn
from matrix.thresholds.card import card
from matrix.thresholds.knobs import Script
from matrix.thresholds.plan import SECONDS
from matrix.thresholds.question import asked
from matrix.thresholds.records import Keeper, scripts_digest
from matrix.thresholds.search import Found
from matrix.tier import Outcome, Tier

ACTOR = "actor_rollout_ref.actor"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
GIB = 2**30

SCRIPT = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--spec")
parser.add_argument("--out")
asked = parser.parse_args()
spec = json.load(open(asked.spec))
out = open(asked.out, "a")
assert os.environ["PYTHONPATH"]

def tell(event, **more):
    out.write(json.dumps({"event": event, "at": 0, **more}) + "\\n")
    out.flush()

tell("ready")
for line in sys.stdin:
    errand = json.loads(line)
    value, name = errand["value"], errand["trial"]
    tell("trial", trial=name)
    used = int(value * 2**28 + 2**30)
    died = spec["cap"] is not None and used + spec["beside"] > spec["cap"]
    peaks = {"reserved": used, "overhead": 2**20}
    tell("part", trial=name, part="actor update")
    tell("part end", trial=name, part="actor update", ended="died" if died else "passed", seconds=0.1, peaks=peaks,
         device_total=150 * 2**30, visible=os.environ["CUDA_VISIBLE_DEVICES"])
    tell("trial end", trial=name, outcome="fail" if died else "pass", how="OutOfMemoryError" if died else "",
         part="actor update" if died else "", text="torch.OutOfMemoryError" if died else "", seconds=0.2)
    if died:
        sys.exit(3)
"""


class Driver:
    """A driver of one GPU, on which `left` MiB stay behind."""

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.looks = 0

    def gpus(self) -> list[Any]:
        return []

    def used(self, index: int) -> int:
        self.looks += 1
        return self.left * 2**20 if self.looks > 1 else 0

    def holders(self, index: int) -> list[Any]:
        return []

    def facts(self, index: int) -> Mapping[str, Any]:
        return {"power_w": 700}

    def versions(self) -> Mapping[str, str]:
        return {"driver": "580.1", "cuda": "13.0"}

    def links(self, first: int, second: int) -> Mapping[str, Any]:
        return {}


GPU = Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", memory=140 * GIB, capability=(9, 0))


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    folder = tmp_path / "compat"
    (folder / "trials").mkdir(parents=True)
    (folder / "workload").mkdir()
    for name in ("update.py", "rollout.py", "step.py"):
        (folder / "trials" / name).write_text(SCRIPT, encoding="utf-8")
    return folder


@pytest.fixture
def bench(probes: Path, tmp_path: Path) -> Bench:
    caches = tmp_path / "caches"
    caches.mkdir()
    return Bench(python=Path(sys.executable), probes=probes, caches=caches, visible="3")


def question(**more: Any) -> Any:
    return replace(asked("qwen2.5-0.5b", MICRO, "24GiB", {f"{ACTOR}.ppo_mini_batch_size": 256}, repeats=1), **more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def keeping(store: Store, bench: Bench, one: Any) -> Any:
    def made(spec: Mapping[str, object]) -> Keeper:
        return Keeper(
            store=store, asked=one, spec=spec, cell="verl0.9.1", lock="sha256:1", trials=scripts_digest(bench.probes),
            kind="x86_64, 1 x NVIDIA H200", machine="x86_64", clock=now, detail={"fingerprint": "sha256:2"},
        )  # fmt: skip

    return made


def test_edge_is_found_kept_and_not_searched_again(bench: Bench, store: Store) -> None:
    told: list[str] = []
    one = question()
    found = ask_one(one, bench, told.append, predicted=90.0, keeper=keeping(store, bench, one))
    # 1 GiB and a quarter of one for each row: 92 rows are 24 GiB.
    assert (found.found, found.largest_pass, found.smallest_fail) == (Found.THRESHOLD, 92, 94)
    assert len(told) == len(found.trials)
    assert told[0].split() == ["84", "pass", "fresh", "22.00", "GiB", "0.2", "s"]
    assert found.trials[0].parts[0].more["visible"] == "3"
    (kept,) = store.find(probe="threshold/*")
    assert kept.outcome is Outcome.OK
    assert kept.question.tier is Tier.GPU
    assert kept.question.probe == one.name
    detail = kept.detail
    assert (detail["largest_pass"], detail["smallest_fail"], detail["trials"]) == (92, 94, len(found.trials))
    assert detail["pass"]["peak"] == 24 * GIB + 2**20  # type: ignore[index]
    assert detail["fail"]["how"] == "OutOfMemoryError"  # type: ignore[index]
    assert str(detail["cap"]["words"]).startswith("capped: 24.0 of 150.0 GiB, by the fraction")  # type: ignore[index]
    assert detail["fingerprint"] == "sha256:2"
    assert len(list(store.find(probe="trial/*"))) == len(found.trials)
    again = ask_one(one, bench, told.append, predicted=90.0, keeper=keeping(store, bench, one))
    assert again.recalled == len(again.trials)
    assert again.line == found.line


def test_search_out_of_time_is_untested_and_goes_on_later(bench: Bench, store: Store) -> None:
    one = question()
    cut = ask_one(
        one, replace(bench, deadline=0.0), print, predicted=90.0, keeper=keeping(store, bench, one)
    )  # fmt: skip
    assert cut.found is Found.CUT_SHORT
    (kept,) = store.find(probe="threshold/*")
    assert kept.outcome is Outcome.UNTESTED
    assert kept.reason == "cut short: the time was up; so far none survives"


def test_trial_that_could_not_be_had_is_asked_again(bench: Bench, store: Store) -> None:
    one = question()
    broken = replace(bench, python=Path("/bin/false"))
    unable = ask_one(one, broken, lambda line: None, predicted=90.0, keeper=keeping(store, bench, one))
    assert unable.found is Found.UNABLE
    (kept,) = store.find(probe="trial/*")
    assert kept.outcome is Outcome.UNTESTED
    found = ask_one(one, bench, lambda line: None, predicted=90.0, keeper=keeping(store, bench, one))
    assert (found.found, found.recalled) == (Found.THRESHOLD, 0)


@pytest.mark.parametrize(
    ("more", "found", "neighbours"),
    [({"beside": 24 * GIB}, Found.ALL_FAIL, (False, True)), ({"cap": None}, Found.ALL_PASS, (True, False))],
)
def test_ends_of_the_ladder_have_one_neighbour(
    bench: Bench, store: Store, more: Any, found: Found, neighbours: tuple[bool, bool]
) -> None:
    one = question(**more)
    result = ask_one(one, bench, lambda line: None, keeper=keeping(store, bench, one))
    assert result.found is found
    (kept,) = store.find(probe="threshold/*")
    assert (kept.detail["pass"] is not None, kept.detail["fail"] is not None) == neighbours


def test_trial_without_a_keeper_is_not_kept(bench: Bench, store: Store) -> None:
    one = asked("qwen2.5-0.5b", "max_num_seqs", "24GiB")
    with asking(one, bench, lambda line: None) as rollout:
        trial = rollout.once(16)
    assert trial.fresh
    assert trial.passed
    assert not len(store)


def test_next_question_is_prepared_once_an_import_is_known_to_take_nothing(bench: Bench, store: Store) -> None:
    three = [question(), question(beside=GIB), question(beside=2 * GIB)]
    prepared, found = [], []
    for one in in_turn(three, bench, lambda line: None, lambda asked, spec: keeping(store, bench, asked)(spec)):
        prepared.append(one.pair._next is not None)
        found.append(one.answer(90.0).largest_pass)
        assert one.pair._working is None
    assert prepared == [False, False, True]
    assert found == [92, 88, 84]
    assert len(list(store.find(probe="threshold/*"))) == 3
    on_cpu = in_turn(three[:2], replace(bench, device="cpu"), lambda line: None, None)
    assert [one.pair._next for one in on_cpu] == [None, None]


def test_children_on_a_processor_see_no_gpu_and_verls_own_plug_in(bench: Bench, tmp_path: Path) -> None:
    with replace(bench, device="cpu", visible="").pair({}, asked("qwen2.5-0.5b", MICRO).knob.script) as pair:
        env = pair.errands.env
    assert (env["CUDA_VISIBLE_DEVICES"], env["VERL_PLATFORM"], env["OMP_NUM_THREADS"]) == ("", "cpu", "2")
    assert env["VERL_USE_EXTERNAL_MODULES"] == "ppo.plugin"


def test_scripts_are_told_apart(probes: Path) -> None:
    before = scripts_digest(probes)
    (probes / "workload" / "model.py").write_text("x = 1\n", encoding="utf-8")
    assert scripts_digest(probes) != before


def environment() -> Environment:
    return Environment(
        cell="verl0.9.1", python=Path(sys.executable), python_version="3.12.3", installed={"verl": "0.9.1"}
    )


def pool(tmp_path: Path, *gpus: Gpu) -> Pool:
    return Pool(inventory=Inventory(gpus=gpus), folder=tmp_path / "leases")


def test_card_is_granted_with_its_fingerprint_and_settles(tmp_path: Path) -> None:
    warmed: list[str] = []
    driver: Any = Driver(left=3)
    with card(environment(), asked=driver, pool=pool(tmp_path, GPU), warmed=warmed.append) as granted:
        seen = granted.observation("verl0.9.1", "sha256:1", now())
        granted.settling.patience_s = 0.0
        left = granted.settle().left_mib
    assert warmed == ["0"]
    assert (granted.visible, left) == ("0", 3)
    assert granted.machine.kind.endswith("1 x NVIDIA H200")
    assert seen.detail["fingerprint"] == granted.digest
    assert "GPU-1" not in json.dumps(seen.detail)


def test_machine_without_a_card_is_refused(tmp_path: Path) -> None:
    driver: Any = Driver()
    with (
        pytest.raises(ToolError, match="No GPU can be granted"),
        card(environment(), asked=driver, pool=pool(tmp_path), warmed=print),
    ):
        pass


def _front() -> Any:
    """Return nobody: this command draws by itself."""


@pytest.fixture
def cli(probes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Give a command line whose card, scripts and environment are made up."""
    driver: Any = Driver()

    def granted(env: Environment) -> Any:
        return card(env, asked=driver, pool=pool(tmp_path, GPU), warmed=lambda visible: None)

    monkeypatch.setattr("matrix.thresholds.card.card", granted)
    monkeypatch.setattr("matrix.probing.folder.probes_folder", lambda: probes)
    monkeypatch.setattr(command, "_environment", lambda args: environment())

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["thresholds", *words, "--home", str(tmp_path / "home")], _front)
        said = capsys.readouterr()
        return code, said.out, said.err

    run.driver = driver  # type: ignore[attr-defined]
    return run


ONE = ("--here", "--knob", MICRO, "--cap", "24GiB", "--set", f"{ACTOR}.ppo_mini_batch_size=256", "--repeats", "1")


def test_command_finds_lists_and_shows(cli: Any) -> None:
    code, out, err = cli(*ONE, "--guess", "90")
    assert code == 0, err
    assert "92 survives, 94 does not: OutOfMemoryError in actor update" in out
    assert "predicted 90, -2.2 %" in out
    assert "1 of 1 questions answered" in out
    assert "capped: 24.0 of 150.0 GiB" in out
    assert ", shipped evidence]" in cli("list")[1]
    code, out, _ = cli("list", "--evidence", "none")
    assert (code, out.count("\n"), "shipped" in out) == (0, 1, False)
    name = out.split("  ")[0]
    code, out, _ = cli("show", name)
    assert code == 0
    assert "pass: 92, 2 trials, 1 in fresh processes, peak 24.00 GiB" in out
    code, out, _ = cli("show", name, "--json")
    (data,) = json.loads(out)
    assert (data["largest_pass"], data["cell"]) == (92, "verl0.9.1")
    assert data["fingerprint"]


def test_command_says_json_of_each_question(cli: Any) -> None:
    code, out, _ = cli(*ONE, "--blind", "--json")
    (data,) = json.loads(out)
    assert (code, data["id"], data["largest_pass"], data["predicted"], data["gpu_left_mib"]) == (
        0,
        "asked",
        92,
        None,
        0,
    )


def test_one_value_is_tried_once(cli: Any) -> None:
    code, out, _ = cli(*ONE, "--value", "4")
    assert (code, json.loads(out)["ending"]) == (0, "pass")
    code, out, _ = cli(*ONE, "--value", "200")
    assert (code, json.loads(out)["how"]) == (1, "OutOfMemoryError")


def test_whole_launch_is_tried_under_a_name_of_its_own(cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli(*ONE, "--value", "4", "--whole-step")
    assert (code, json.loads(out)["name"].rpartition("/")[2]) == (0, "24GiB-step")
    (kept,) = Store(tmp_path / "home" / "store").find(probe="trial/*")
    assert kept.question.probe.endswith("/24GiB-step/4")


def test_memory_that_is_left_ends_the_run(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.gpus.settling.PATIENCE_S", 0.0)
    cli.driver.left = 7
    monkeypatch.setattr("matrix.gpus.settling.Settling.settle", lambda self: _Left())
    code, out, err = cli(*ONE, "--guess", "90")
    assert "7 MiB are left on the GPU after asked; it is used no further" in err
    assert (code, "1 of 1" in out) == (0, True)


class _Left:
    left_mib = 7


def test_time_that_does_not_suffice_asks_nothing(cli: Any) -> None:
    code, _, err = cli(*ONE, "--minutes", "0.01")
    assert code == NothingRanError.exit_code
    assert "untested, about" in err


def test_plan_touches_nothing(cli: Any) -> None:
    code, out, _ = cli("--plan", "--minutes", "2", "--repeats", "1")
    assert code == 0
    assert "of 13 questions, about" in out
    assert out.splitlines()[0].startswith("  actor-80")
    code, out, _ = cli("--plan", "--json", "--questions", "actor-24")
    assert [row["id"] for row in json.loads(out)] == ["actor-24"]
    code, out, _ = cli("--plan", "--blind", "--questions", "actor-24")
    assert "blind" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--repeats", "0"), 2, "--repeats is at least 1"),
        (("--set", "a=1"), 2, "go with --knob"),
        (("--value", "4"), 2, "goes with one question"),
        (("--whole-step", "--questions", "actor-24"), 2, "goes with --value"),
        (("show",), 2, "takes one name"),
        (("list", "x"), 2, "takes one name"),
        (("list", "--evidence", "none"), 10, "No threshold is stored"),
        (("--minutes", "nan"), 2, "--minutes is a number above 0"),
        (("--minutes", "-1"), 2, "--minutes is a number above 0"),
        ((*ONE, "--plan", "--guess", "nan"), 2, "--guess is a number above 0"),
        ((*ONE, "--value", "inf"), 2, "--value is a number above 0"),
        ((*ONE, "--plan", "--beside-mib", "-100"), 2, "less than nothing"),
        (("show", "x"), 10, "No threshold `x` is stored"),
        (("--knob", "zzz"), 2, "names no knob"),
    ],
)
def test_words_that_make_no_sense_are_refused(cli: Any, words: tuple[str, ...], code: int, said: str) -> None:
    got, _, err = cli(*words)
    assert got == code
    assert said in err


def test_environment_is_the_one_named_or_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main(["thresholds", *words, "--home", str(tmp_path)], _front)
        return code, capsys.readouterr().err

    assert run()[0] == 2
    assert "no cell is named with it" in run("verl0.9.1", "--here")[1]
    code, err = run("verl0.9.1")
    assert (code, "There is no environment of verl0.9.1" in err) == (10, True)


def test_kept_environment_of_a_cell_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matrix.provision.environment import Manifest

    folder = Home.find(str(tmp_path)).cache / "environments" / "verl0.9.1"
    folder.mkdir(parents=True)
    Manifest(
        cell="verl0.9.1", lock="sha256:1", python_version="3.12.1", installed={}, made=now(), uv="1", seconds=0.0,
        added_bytes=0,
    ).write(folder)  # fmt: skip
    seen: list[Environment] = []

    def take(args: Any, questions: Any, found: Environment) -> int:
        seen.append(found)
        return 0

    monkeypatch.setattr(command, "_ask_all", take)
    assert main(["thresholds", "verl0.9.1", "--home", str(tmp_path)], _front) == 0
    assert seen[0].lock == "sha256:1"


def test_processor_is_tried_without_a_card_and_kept_nowhere(cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli(*ONE, "--guess", "90", "--device", "cpu")
    assert (code, "92 survives" in out) == (0, True)
    assert cli("list", "--evidence", "none")[0] == 10


def test_limits_cover_every_script() -> None:
    assert set(asking_module.LIMITS) == set(SECONDS) == set(Script)
