"""`pins` over a small stack: the real uv, resolver, surface tier and renderers, with records of its own."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest

import matrix.evidence
import matrix.pins.choice
import matrix.records
from matrix.atomic import replace_file
from matrix.cli import wiring
from matrix.failure import Failure
from matrix.gpus.inventory import Inventory
from matrix.observe import Observation
from matrix.pins import output
from matrix.pins.proof import KEYSTONE
from matrix.store import Store
from matrix.tier import Outcome, Tier
from tests.unit.cli_home import bare_interpreter, fresh_home
from tests.unit.cli_stack import Said, check_golden, record_axes, said, stocked
from tests.unit.failure_samples import changed
from tests.unit.http_server import Site, wheel
from tests.unit.run_fakes import finding, observation

H200 = "x86_64, 1 x NVIDIA H200"
TRIED = "verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0"
SCHEMA = json.loads((Path(matrix.pins.choice.__file__).with_name("evidence.schema.json")).read_text())
OLD = changed(id="old-vllm", affects={"vllm": "<0.25"}, mended={"vllm": ">=0.25"}, default_path=False, feature="qat")
AT = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with stocked() as site:
        for version, torch in (("1.0", "torch==2.12.0"), ("2.0", "torch==2.11.0"), ("3.0", "torch>=2")):
            body = wheel("helper", version, {"helper/__init__.py": b""}, requires=[torch])
            site.add("helper", f"helper-{version}-py3-none-any.whl", body)
        yield site


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that the tests of this module share, so that uv fetches each wheel once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _small(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record_axes(monkeypatch, home / "axes.toml")
    monkeypatch.setattr(matrix.evidence, "SHIPPED", tmp_path / "nothing")
    monkeypatch.setattr(wiring, "gpus", Inventory)
    monkeypatch.setattr(matrix.pins.choice, "load_cells", lambda: ())
    records(monkeypatch, OLD)
    monkeypatch.chdir(tmp_path)


def records(monkeypatch: pytest.MonkeyPatch, *failures: Failure) -> None:
    """Let these be the records."""
    monkeypatch.setattr(matrix.records, "load_failures", lambda: failures)


def evidence(folder: Path, *items: Observation) -> str:
    """Return the folder of a store of evidence that holds these."""
    Store(folder).add(*items)
    return str(folder)


def gpu(name: str = TRIED, outcome: Outcome = Outcome.OK, **more: object) -> Observation:
    return observation(name, Tier.GPU, outcome, machine=H200, at=AT, probe=f"compat/{KEYSTONE}", **more)  # type: ignore[arg-type]


def ask(site: Site, home: Path, *words: str) -> Said:
    return said("pins", *words, "--home", str(home), "--index-url", site.url)


def sets(heard: Said) -> list[dict[str, object]]:
    return list(json.loads(heard.out)["sets"])


def labels(heard: Said) -> dict[str, str]:
    """Return the cell of each label."""
    return {label: row["set"]["cell"] for row in sets(heard) for label in row["labels"]}  # type: ignore[index, attr-defined]


def test_the_sets_worth_choosing_are_told_and_written_with_what_they_rest_on(
    site: Site, home: Path, tmp_path: Path
) -> None:
    store = evidence(tmp_path / "seen", gpu())
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--evidence", store)
    assert heard.code == 0
    assert "newest proven = smallest change: verl 0.9.1, vllm 0.24.0" in heard.out
    assert "proven    at gpu, on NVIDIA H200, 2026-11-01 (shipped evidence)" in heard.out
    assert "newest resolvable: verl 0.9.1, vllm 0.26.0" in heard.out
    assert "degraded  1 finding of features not in use" in heard.out
    assert "avoids    old-vllm" in heard.out
    assert "untested  import, behave, gpu, bench" in heard.out
    assert "install   uv pip install -r pins/newest-resolvable/pylock.toml" in heard.out
    assert len(heard.out.splitlines()) < 40
    for name in ("newest-proven", "newest-resolvable"):
        folder = tmp_path / "pins" / name
        assert {path.name for path in folder.iterdir()} == {"constraints.txt", "pylock.toml", "evidence.json"}
        data = json.loads((folder / "evidence.json").read_text())
        jsonschema.validate(data, SCHEMA)
        pins = (folder / "constraints.txt").read_text()
        assert all(f"{package}=={version}" in pins for package, version in data["set"]["versions"].items())
        assert all(data["hashes"][package] for package in data["set"]["versions"])
        assert 'sha256 = "' in (folder / "pylock.toml").read_text()
    assert "# " + TRIED in (tmp_path / "pins" / "newest-proven" / "constraints.txt").read_text()


CHOICES: Sequence[tuple[str, str, dict[str, str]]] = [
    ("a feature in use counts", "verl==0.9.1 vllm==0.24.0 --uses qat",
     {"newest resolvable": "verl0.9.1-vllm0.25.0", "smallest change": "verl0.9.1-vllm0.24.0"}),
    ("a known failure to be rid of", "verl==0.9.1 vllm==0.24.0 --fix old-vllm",
     {"newest resolvable": "verl0.9.1-vllm0.26.0", "smallest change": "verl0.9.1-vllm0.25.0"}),
    ("a version that is wanted", "verl==0.9.1 vllm==0.24.0 --to vllm==0.25.*",
     {"newest resolvable": "verl0.9.1-vllm0.25.0", "smallest change": "verl0.9.1-vllm0.25.0"}),
    ("verl may move", "verl==0.8.0 vllm==0.24.0 --newest",
     {"newest resolvable": "verl0.9.1-vllm0.26.0", "smallest change": "verl0.8.0-vllm0.24.0"}),
    ("verl stays", "verl==0.8.0 vllm==0.24.0 --to vllm>=0.25",
     {"newest resolvable": "verl0.8.0-vllm0.26.0", "smallest change": "verl0.8.0-vllm0.25.0"}),
    ("another package", "verl==0.9.1 vllm==0.25.0 --to helper>=2",
     {"newest resolvable": "verl0.9.1-vllm0.26.0-with.helper.ge.2",
      "smallest change": "verl0.9.1-vllm0.25.0-with.helper.ge.2"}),
    ("nothing is known of verl", "vllm==0.25.0", {"newest resolvable": "verl0.9.1-vllm0.26.0"}),
    ("no vllm where another engine is", "verl==0.9.1 sglang", {"newest resolvable": "verl0.9.1"}),
    ("an override", "verl==0.9.1 vllm==0.28.0 --override torch==2.12.0",
     {"newest resolvable": "verl0.9.1-vllm0.28.0-ov.torch.eq.2.12.0"}),
    ("a range of one's own", "verl==0.9.1 vllm<0.26 transformers>=5",
     {"newest resolvable": "verl0.9.1-vllm0.25.0-tf5.9.0"}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "wanted"), [case[1:] for case in CHOICES], ids=[case[0] for case in CHOICES])
def test_what_is_chosen_follows_want_and_policy(site: Site, home: Path, words: str, wanted: dict[str, str]) -> None:
    heard = ask(site, home, *words.split(), "--json")
    found = labels(heard)
    assert {label: found.get(label) for label in wanted} == wanted, heard.out[-600:]
    assert heard.code == 0


def test_an_override_is_written_as_a_table_for_uv(site: Site, home: Path, tmp_path: Path) -> None:
    heard = ask(site, home, "verl==0.9.1", "vllm==0.28.0", "--override", "torch==2.12.0")
    assert "deviates  override torch==2.12.0 (asked on the command line)" in heard.out
    text = (tmp_path / "pins" / "newest-resolvable" / "overrides.toml").read_text()
    assert '[tool.uv]\noverride-dependencies = [\n  "torch==2.12.0",\n]' in text
    assert "overrides torch==2.12.0" in (tmp_path / "pins" / "newest-resolvable" / "constraints.txt").read_text()


def test_where_nothing_qualifies_the_chain_and_what_would_do_are_told(site: Site, home: Path) -> None:
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--to", "vllm>=0.28")
    assert heard.code == 1
    assert "because  verl 0.9.1 requires torch<2.12 [verl-0.9.1-py3-none-any.whl METADATA]" in heard.out
    assert "vllm 0.28.0 requires torch==2.12.0" in heard.out
    assert re.search(r"\d\. settle for vllm 0.26.0 instead of >=0.28\n +gives +verl 0.9.1, vllm 0.26.0", heard.out)
    assert "override torch==2.12.0 against: verl 0.9.1 requires torch<2.12" in heard.out
    assert "with    --override 'torch==2.12.0'" in heard.out
    data = json.loads(ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--to", "vllm>=0.28", "--json").out)
    assert data["sets"] == []
    eases = [row["ease"] for row in data["nothing"]["relaxations"]]
    assert set(eases) == {"another version than wanted", "the metadata"}
    assert all(row["set"]["resolvable"] == "ok" for row in data["nothing"]["relaxations"])


def test_a_version_that_does_not_exist_is_told_with_what_is_near(site: Site, home: Path) -> None:
    heard = ask(site, home, "verl==0.9.1", "--to", "vllm>=99")
    assert heard.code == 1
    assert "no release of vllm is >=99; closest: 0.29.0, 0.28.0" in heard.out
    assert "settle for vllm 0.26.0 instead of >=99" in heard.out
    heard = ask(site, home, "verl==0.9.7", "vllm==0.24.0")
    assert heard.code == 1
    assert "there is no verl 0.9.7; closest: 0.9.1" in heard.out


def test_a_policy_that_nothing_keeps_says_what_is_proven_less_deep(
    site: Site, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = evidence(tmp_path / "seen", gpu())
    words = ("verl==0.9.1", "vllm==0.24.0", "--evidence", store)
    heard = ask(site, home, *words, "--min-tier", "bench", "--gpu", "A100")
    assert (heard.code, "not proven at bench or deeper on A100" in heard.out) == (1, True)
    assert "be content with what was tried at gpu and any GPU" in heard.out
    assert "with    --min-tier gpu, without --gpu" in heard.out
    assert ask(site, home, *words, "--min-tier", "gpu", "--gpu", "H200").code == 0
    lora = changed(id="lora-breaks", affects={"vllm": ">=0.24"}, mended={}, default_path=False, feature="lora")
    records(monkeypatch, lora)
    heard = ask(site, home, "verl==0.9.1", "--uses", "lora,fp8")
    assert heard.code == 1
    assert "because  known failure lora-breaks" in heard.out
    assert "go without lora" in heard.out
    assert "with    --uses fp8" in heard.out


def test_a_break_that_was_seen_on_a_machine_speaks_against_a_set(site: Site, home: Path, tmp_path: Path) -> None:
    store = evidence(tmp_path / "seen", gpu(outcome=Outcome.BROKEN, findings=[finding()]))
    heard = ask(site, home, "verl==0.9.1", "--evidence", store, "--json", "--to", "vllm==0.24.0")
    assert TRIED not in labels(heard).values()
    assert "newest proven" not in labels(heard)


def test_an_index_as_of_a_day_has_no_later_files_and_no_later_evidence(site: Site, home: Path, tmp_path: Path) -> None:
    store = evidence(tmp_path / "seen", gpu())
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--evidence", store, "--as-of", "2020-01-01")
    assert heard.code == 1
    assert "0 candidates" in heard.out or "0 resolve" in heard.out


def test_what_was_measured_is_shown_and_a_loss_or_a_gap_beyond_its_limit_disqualifies(
    site: Site, home: Path, tmp_path: Path
) -> None:
    def compared(kind: str, **more: object) -> Observation:
        data = {"a": "verl0.9.1-vllm0.24.0", "b": "verl0.9.1-vllm0.26.0", "kind": kind, "metric": kind, "ratio": 0.9,
                "low": 0.88, "high": 0.92, "n": [8, 8], "verdict": "slower", **more}  # fmt: skip
        detail = {"comparison": data}
        return observation(data["b"], Tier.BENCH, detail=detail, machine=H200, probe=f"compare/{kind}", at=AT)  # type: ignore[arg-type]

    slow = ("--evidence", evidence(tmp_path / "slow", compared("speed")), "--json")
    words = ("verl==0.9.1", "vllm==0.24.0")
    heard = ask(site, home, *words, *slow)
    assert labels(heard)["newest resolvable"] == "verl0.9.1-vllm0.26.0"
    assert "measured  speed x0.900 [0.880, 0.920] slower" in ask(site, home, *words, *slow[:2]).out
    heard = ask(site, home, *words, *slow, "--max-slowdown", "3%")
    assert labels(heard)["newest resolvable"] == "verl0.9.1-vllm0.25.0"
    heard = ask(site, home, *words, *slow[:2], "--max-slowdown", "3%", "--to", "vllm==0.26.0")
    assert "slower by up to 12.0%, allowed are 3.0%" in heard.out
    assert "accept the loss of throughput" in heard.out
    gap = ("--evidence", evidence(tmp_path / "gap", compared("numerics", beyond_tolerance=True)), "--json")
    assert labels(ask(site, home, *words, *gap))["newest resolvable"] == "verl0.9.1-vllm0.25.0"


def test_other_packages_are_kept_as_far_as_they_can_be(site: Site, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("verl==0.9.1\nvllm==0.24.0\nhelper==1.0\nflash-attn==2.8.3\n")
    heard = ask(site, home, str(path))
    assert "gives way requirements.txt:3: helper==1.0 has to give way" in heard.out
    assert "flash-attn 2.8.3 → none (requirements.txt:4)" in heard.out
    path.write_text("verl==0.9.1\nvllm==0.24.0\nhelper>=2\n")
    heard = ask(site, home, str(path), "--json")
    assert all(row["set"]["versions"]["helper"] == "3.0" for row in sets(heard))  # type: ignore[index]
    path.write_text("verl==0.9.1\nvllm==0.24.0\ntransformers==5.8.0\n")
    heard = ask(site, home, str(path))
    assert "transformers 5.8.0 → 5.9.0 (requirements.txt:3)" in heard.out


def test_what_was_left_open_moves_to_avoid_a_known_failure(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = changed(id="helper-3", affects={"helper": ">=3"}, mended={"helper": "<3"})
    records(monkeypatch, bad, changed(id="torch-212", affects={"torch": ">=2.12"}, mended={}))
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--to", "helper>=1", "--json")
    assert labels(heard)["newest resolvable"] == "verl0.9.1-vllm0.26.0-with.helper.lt.3"


def test_a_break_that_the_present_set_has_too_is_kept_and_told(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records(monkeypatch, changed(id="all-verl", affects={"verl": ">=0"}, mended={}))
    store = evidence(tmp_path / "seen", gpu())
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--evidence", store)
    assert heard.code == 0
    assert "keeps     all-verl, as you have it now" in heard.out
    assert "newest proven" not in heard.out


def test_a_package_is_explained_by_file_and_line(site: Site, home: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("verl==0.9.1\nvllm==0.24.0\ntorch<3\n")
    heard = ask(site, home, "explain", "torch", "requirements.txt")
    assert heard.code == 0
    assert "torch 2.11.0, in verl0.9.1" in heard.out
    assert re.search(
        r"metadata verl 0.9.1: torch<2.12 \[verl-0.9.1-py3-none-any.whl METADATA:\d+\]  <- sets", heard.out
    )
    assert "yours    requirements.txt: torch<3 [requirements.txt:3]" in heard.out
    assert "2.12.0 is kept out by verl 0.9.1" in heard.out
    data = json.loads(ask(site, home, "explain", "vllm", "verl==0.9.1", "vllm==0.24.0", "--json").out)
    assert [row["holder"] for row in data["bounds"] if row["kind"] == "record"] == ["old-vllm"]
    assert ask(site, home, "explain", "tensordict", "verl==0.9.1").out.endswith("It is the newest release there is.\n")
    assert ask(site, home, "explain").code == 2
    assert ask(site, home, "explain", "torch", "verl==0.9.1", "--to", "vllm==0.28.0").code == 2


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_interpreter(tmp_path_factory.mktemp("bare"))


def test_an_old_answer_is_checked_again(
    site: Site, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime.now(UTC) - timedelta(days=10)
    store = evidence(tmp_path / "seen", replace(gpu(), at=at))
    assert ask(site, home, "verl==0.9.1", "vllm==0.24.0", "--evidence", store).code == 0
    folder = tmp_path / "pins" / "newest-proven"
    for name in ("evidence.json", "pylock.toml", "constraints.txt"):
        heard = ask(site, home, "verify", str(folder / name))
        assert (heard.code, "still holds" in heard.out) == (0, True), heard.out
    path = str(folder / "evidence.json")
    assert json.loads(ask(site, home, "verify", path, "--json").out)["holds"] is True
    assert ask(site, home, "verify", path, "--max-age", "12").code == 0
    heard = ask(site, home, "verify", path, "--max-age", "9")
    assert (heard.code, f"evidence too old: last tried on {at:%Y-%m-%d}, 10 days ago" in heard.out) == (1, True)
    records(monkeypatch, changed(id="just-found", affects={"vllm": "==0.24.0"}))
    heard = ask(site, home, "verify", path)
    assert (heard.code, "new known failure: just-found" in heard.out) == (1, True)
    constraints = folder / "constraints.txt"
    text = constraints.read_text()
    constraints.write_text(text.replace("numpy==2.3.5", "numpy==2.3").replace("vllm==0.24.0", "vllm==0.25.0"))
    heard = ask(site, home, "verify", str(constraints))
    assert "edited since: constraints.txt is another set than the evidence.json beside it: " in heard.out
    assert "vllm 0.25.0, was 0.24.0" in heard.out
    constraints.write_text(re.sub(r"(?m)^torch==.*\n", "", text))
    assert re.search(r"torch is gone, was \d", ask(site, home, "verify", str(constraints)).out)
    resolvable = str(tmp_path / "pins" / "newest-resolvable" / "evidence.json")
    assert "no evidence: nothing tells" in ask(site, home, "verify", resolvable, "--max-age", "9").out


def test_an_index_that_changed_since_is_told(bare: Path, tmp_path: Path) -> None:
    home = fresh_home(tmp_path, bare)
    with stocked() as site:
        (tmp_path / "list.txt").write_text(
            "vllm==0.24.0 --hash=sha256:" + "0" * 64 + "\ntorch==2.11.0\nray==9\nnowhere==1\nverl==0.9.1\n"
        )
        body = wheel("torch", "2.11.0", {})
        site.add("torch", "torch-2.11.0-py3-none-any.whl", body, yanked="broken on every card")
        heard = said(
            "pins", "verify", str(tmp_path / "list.txt"), "--home", str(home / "kept"), "--index-url", site.url
        )
        assert heard.code == 1
        assert "uploaded anew: vllm 0.24.0: a file of the answer (000000000000…)" in heard.out
        assert "gone: ray 9 is not on the index; closest: 2.60.0" in heard.out
        assert "gone: nowhere is not on the index any more" in heard.out
        assert "no longer holds (5 packages, 1 with hashes" in heard.out


WRONG = {
    "no words": ("", "Nothing says what you have"),
    "an unknown record": ("verl==0.9.1 --fix nope", "there is no record `nope`"),
    "a malformed target": ("verl==0.9.1 --to vllm", "it does not say which versions"),
    "an unknown tier": ("verl==0.9.1 --min-tier deep", "There is no tier `deep`"),
    "an unknown feature": ("verl==0.9.1 --uses loras", "there is no feature `loras`"),
    "no share": ("verl==0.9.1 --max-slowdown much", "is not a share"),
    "a file and a spec": ("FILE verl==0.9.1", "One file at a time"),
    "here and a spec": ("verl==0.9.1 --here", "so no file goes with it"),
    "no requirement": ("what?", "neither a file that is there nor a requirement"),
    "verify of nothing": ("verify", "takes one file"),
    "verify with odd days": ("verify FILE --max-age soon", "not a number of days"),
    "an override of nothing": ("verl==0.9.1 --override torch", "does not say which version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_words_that_make_no_sense_are_refused(site: Site, home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "requirements.txt").write_text("verl==0.9.1\n")
    words, message = WRONG[name]
    heard = ask(site, home, *words.replace("FILE", str(tmp_path / "requirements.txt")).split())
    assert (heard.code, message in heard.err) == (2, True), heard.err


def test_what_is_no_old_answer_is_refused(site: Site, home: Path, tmp_path: Path) -> None:
    cases = {
        "evidence.json": (("{", 3, "is no evidence.json"), ("{}", 3, "is no evidence.json"),
                          ('{"schema": 99}', 11, "reads up to 1"), ('{"schema": 1}', 3, "of this tool: KeyError")),
        "pylock.toml": (("x", 3, "is no pylock.toml"), ("packages = []", 3, "names no exact version")),
        "constraints.txt": (("verl>=1", 3, "line 1: `verl>=1`"), ("?", 3, "line 1"), ("-r x", 3, "names no exact")),
    }  # fmt: skip
    for file, rows in cases.items():
        for text, code, message in rows:
            (tmp_path / file).write_text(text)
            heard = ask(site, home, "verify", str(tmp_path / file))
            assert (heard.code, message in heard.err) == (code, True), (file, text, heard.err)


def test_a_freeze_may_come_on_standard_input_and_an_environment_by_its_python(
    site: Site, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("verl==0.9.1\nvllm==0.25.0\nhelper==2.0\n"))
    heard = ask(site, home, "-")
    assert "changes   none of the axes" in heard.out
    assert heard.code == 0
    heard = ask(site, home, "--here", sys.executable, "--to", "vllm==0.25.0", "--to", "verl==0.9.1")
    assert heard.code == 0
    assert "have    no exact version of the stack" in heard.out or "have    " in heard.out


def test_advice_is_of_every_release_and_asks_nothing(tmp_path: Path) -> None:
    store = evidence(tmp_path / "seen", gpu())
    words = ("pins", "advice", "--home", str(tmp_path / "none"), "--evidence", store)
    heard = said(*words)
    assert (heard.code, heard.err) == (0, "")
    assert heard.out == (
        "verl 0.9.1: proven at gpu, NVIDIA H200, 2026-11-01; untested: import, behave, bench\n"
        "  pip install verl==0.9.1 vllm==0.24.0 torch==2.11.0 transformers==5.9.0\n"
        "verl 0.8.0: nothing of it was tried on a machine\n"
    )
    assert [row["verl"] for row in json.loads(said(*words, "--json").out)["releases"]] == ["0.9.1", "0.8.0"]
    assert said(*words[:4], "--evidence", "none").code == 1
    assert said(*words, "verl==0.9.1").code == 2


def test_the_words_of_pins_are_frozen() -> None:
    heard = said("pins", "--help")
    assert heard.code == 0
    check_golden("help-pins.txt", heard.out, loose=True)


def test_a_full_disk_or_a_folder_that_cannot_be_written_is_told(
    site: Site, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert ask(site, home, "verl==0.9.1", "--out", str(tmp_path / "file")).code == 2

    def full(path: Path, content: bytes) -> None:
        if path.name == "pylock.toml":
            raise OSError(28, "No space left on device")
        replace_file(path, content)

    monkeypatch.setattr(output, "replace_file", full)
    heard = ask(site, home, "verl==0.9.1", "vllm==0.24.0")
    assert (heard.code, "No room is left for" in heard.err) == (8, True)
