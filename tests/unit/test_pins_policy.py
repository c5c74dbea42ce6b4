"""What a policy counts: features in use, known failures, what was tried and measured; and the words that say so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.cell import parse_name
from matrix.errors import DataError, UsageError
from matrix.failure import Failure, Severity
from matrix.finding import Effect, Kind
from matrix.pins.advice import advice
from matrix.pins.commands import install_command
from matrix.pins.kept import complete, weigh
from matrix.pins.measured import Measured, about, measured
from matrix.pins.policy import Policy, parse_share, parse_uses, patterns, profile_features
from matrix.pins.proof import KEYSTONE, prove
from matrix.pins.want import parse_want
from matrix.records import load_failures
from matrix.tier import Outcome, Tier
from tests.unit.failure_samples import AIMV2, changed
from tests.unit.run_fakes import AT, finding, observation

NAME = "verl0.9.1-vllm0.24.0-torch2.11.0-tf5.9.0"
H200, CPU = "x86_64, 1 x NVIDIA H200", "x86_64, 2 cores, 24 GiB, no GPU"


@pytest.mark.parametrize(
    ("uses", "texts", "counts"),
    [
        (("lora",), ("lora",), True), (("lora",), ("explorations",), False),
        (("lora",), ("LoRA (lora_rank > 0)",), True), (("megatron",), ("Megatron backend",), True),
        (("fp8",), ("", "an MoE model with rollout.quantization=fp8"), True),
        (("async",), ("rollout that does not sleep between steps (asynchronous, disaggregated)",), True),
        (("qat",), ("qat",), True), ((), ("lora",), False), (("vlm",), ("Qwen2.5-VL with flash attention",), True),
        (("ulysses",), ("lora",), False), (("moe",), ("mixture-of-experts models",), True),
    ],
)  # fmt: skip
def test_a_feature_counts_where_it_is_in_use(uses: tuple[str, ...], texts: tuple[str, ...], counts: bool) -> None:
    assert Policy(uses=uses).uses_feature(*texts) is counts


def test_every_word_is_somebodys_feature() -> None:
    texts = [text for failure in load_failures() for text in (failure.feature, failure.needs) if text]
    texts += profile_features()
    idle = {word for word, pattern in patterns().items() if not any(pattern.search(text) for text in texts)}
    assert idle == set()


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, True), ({"certain": False}, False), ({"effect": Effect.GUARDED.value}, False),
        ({"kind": Kind.PACKAGE_ABSENT.value}, False), ({"feature": "lora"}, False),
        ({"feature": "lora", "default_path": True}, True), ({"feature": "fp8"}, True),
        ({"effect": Effect.DEGRADES.value}, False),
    ],
)  # fmt: skip
def test_a_finding_is_a_break_on_the_ordinary_path_or_of_what_is_used(more: Mapping[str, object], counts: bool) -> None:
    assert Policy(uses=("fp8",)).counts({**finding().to_json(), **more}, broken=False) is counts
    if more == {"feature": "lora"}:
        assert Policy().counts({**finding().to_json(), **more}, broken=True)


def test_words_that_are_no_feature_share_or_pattern_are_refused(tmp_path: Path) -> None:
    assert parse_uses(["lora, FP8", "qat"], profile_features()) == ("fp8", "lora", "qat")
    with pytest.raises(UsageError, match="no feature `lore`") as raised:
        parse_uses(["lore"])
    assert "lora" in raised.value.why
    with pytest.raises(UsageError, match="no feature `zzzzzz`"):
        parse_uses(["zzzzzz"])
    assert (parse_share("3%"), parse_share("0.03"), parse_share("0")) == (0.03, 0.03, 0.0)
    for text in ("100%", "x", "-1", "1", "3 percent"):
        with pytest.raises(UsageError, match="is not a share"):
            parse_share(text)
    path = tmp_path / "features.toml"
    path.write_text("schema = 1\n[[feature]]\nname = 'a'\nmatches = '('\n")
    with pytest.raises(DataError, match="is not a regular expression"):
        patterns(path)


LOCKED = {"verl": Version("0.9.1"), "vllm": Version("0.9.2"), "transformers": Version("4.55")}


@pytest.mark.parametrize(
    ("failure", "group"),
    [
        (AIMV2, "against"),
        (changed(severity=Severity.LOW), "elsewhere"),
        (changed(needs="a MoE model"), "conditional"),
        (changed(needs="a MoE model", feature="fp8", default_path=False), "against"),
        (changed(feature="lora", default_path=False), "elsewhere"),
        (changed(planted=True), ""),
        (changed(affects={"vllm": ">=1"}), ""),
        (changed(affects={"kernels": ">=1"}), ""),
        (changed(needs="x=true (the default) and TransferQueue not installed"), "against"),
        (changed(needs="tensorlike is not installed and a MoE model"), "conditional"),
        (changed(needs="verl not installed"), ""),
        (changed(needs="no flash-linear-attention (fla) in the environment"), "against"),
    ],
)  # fmt: skip
def test_what_a_record_says_of_a_whole_set(failure: Failure, group: str) -> None:
    kept = weigh([failure], complete(LOCKED, "3.12", [failure]), Policy(uses=("fp8",)), whole=True)
    found = [name for name in ("against", "present", "conditional", "elsewhere", "avoided") if getattr(kept, name)]
    assert found == ([group] if group else [])


def test_what_the_present_set_has_is_kept_or_avoided_and_what_a_probe_did_not_see_is_not_there() -> None:
    known = complete(LOCKED, "3.12", [AIMV2])
    assert weigh([AIMV2], known, Policy(), present=known).present == (AIMV2,)
    assert not weigh([AIMV2], known, Policy(), present=known).against
    newer = complete({**LOCKED, "vllm": Version("0.10")}, "3.12", [AIMV2])
    kept = weigh([AIMV2], newer, Policy(), present=known)
    assert (kept.avoided, kept.against) == ((AIMV2,), ())
    assert kept.to_json()["avoided"] == [
        {"id": "inspect-aimv2", "title": AIMV2.title, "severity": "high", "confidence": "measured", "needs": "",
         "feature": ""}
    ]  # fmt: skip
    absent = observation(NAME, Tier.IMPORT, detail={"failure": AIMV2.id, "seen": "absent"})
    assert not weigh([AIMV2], known, Policy(), observations=[absent]).against


def test_proven_is_tried_deep_enough_on_a_named_machine_and_unbroken() -> None:
    ok = observation(NAME, Tier.GPU, machine=H200, probe="compat/test_lora.py::test_lora_on_a_gpu")
    trains = observation(NAME, Tier.GPU, machine=H200, probe=f"compat/{KEYSTONE}")
    proof = prove([ok, trains], Policy(uses=("lora", "megatron")))
    assert (proof.tier, proof.machine, proof.at, proof.untried) == (Tier.GPU, "NVIDIA H200", AT, ("megatron",))
    assert proof.proven(Policy())
    assert not proof.proven(Policy(min_tier=Tier.BENCH))
    assert prove([trains], Policy(gpu="h200")).proven(Policy())
    assert prove([trains], Policy(gpu="A100")).tier is None
    nameless = observation(NAME, Tier.GPU, machine="")
    assert prove([nameless], Policy()).deepest is None
    assert [item.tier for item in prove([nameless], Policy()).tried] == [Tier.GPU]
    assert prove([], Policy()).machine == ""
    record = observation(NAME, Tier.GPU, machine=H200, detail={"failure": AIMV2.id})
    assert prove([record], Policy(uses=("vlm",)), [changed(feature="vision models", default_path=False)]).untried == ()


@pytest.mark.parametrize(
    ("outcome", "findings", "breaks"),
    [
        (Outcome.BROKEN, None, True), (Outcome.DEGRADED, None, False), (Outcome.BROKEN, [finding()], True),
        (Outcome.DEGRADED, [finding(Effect.BREAKS_FEATURE, feature="lora")], True),
        (Outcome.DEGRADED, [finding(Effect.BREAKS_FEATURE, feature="qat")], False),
        (Outcome.UNTESTED, None, False),
    ],
)  # fmt: skip
def test_a_break_that_counts_is_told_and_one_that_does_not_is_only_shown(
    outcome: Outcome, findings: list[object] | None, breaks: bool
) -> None:
    seen = [
        observation(NAME, Tier.GPU, machine=H200, probe=f"compat/{KEYSTONE}"),
        observation(NAME, Tier.IMPORT, outcome, machine=CPU, findings=findings),  # type: ignore[arg-type]
    ]
    proof = prove(seen, Policy(uses=("lora",)))
    assert bool(proof.breaks) is breaks
    assert proof.proven(Policy()) is not breaks
    if outcome is not Outcome.UNTESTED and not breaks:
        assert proof.degraded[0].startswith("import: ")


@pytest.mark.parametrize(
    ("probes", "tier", "partly"),
    [
        ({f"compat/{KEYSTONE}": Outcome.OK, "compat/test_device.py::test_x": Outcome.OK}, Tier.GPU, ""),
        ({f"compat/{KEYSTONE}": Outcome.UNTESTED, "compat/test_device.py::test_x": Outcome.OK}, Tier.IMPORT,
         "gpu: ok, 1 of 2 probes, NVIDIA H200, 2026-11-30"),
        ({"compat/test_device.py::test_x": Outcome.OK}, Tier.IMPORT, "gpu: ok, NVIDIA H200, 2026-11-30"),
        ({f"compat/{KEYSTONE}": Outcome.UNTESTED}, Tier.IMPORT, ""),
    ],
)  # fmt: skip
def test_the_tier_gpu_proves_a_set_only_where_ppo_was_run(
    probes: Mapping[str, Outcome], tier: Tier, partly: str
) -> None:
    seen = [observation(NAME, Tier.GPU, outcome, machine=H200, probe=name, at=AT) for name, outcome in probes.items()]
    proof = prove([observation(NAME, Tier.IMPORT, machine=CPU), *seen], Policy())
    assert proof.tier is tier
    assert proof.proven(Policy()) is (tier is Tier.GPU)
    assert (proof.partly.line if proof.partly else "") == partly


def comparison(at: datetime = AT, **more: object) -> object:
    data = {
        "a": "verl0.9.1-vllm0.23.0", "b": NAME, "kind": "speed", "metric": "throughput", "verdict": "slower",
        "ratio": 0.95, "low": 0.93, "high": 0.97, "better": "higher", "n": [8, 8], **more,
    }  # fmt: skip
    return observation(NAME, Tier.BENCH, detail={"comparison": data}, machine=H200, at=at, probe=str(data["metric"]))


def test_comparisons_are_read_with_their_intervals_the_latest_first() -> None:
    old = comparison(AT - timedelta(days=1), ratio=1.0)
    rows = [old, comparison(), comparison(n="x"), comparison(metric="gap", kind="numerics", beyond_tolerance=True)]
    found = measured([*rows, observation(NAME, Tier.BENCH), observation(NAME, Tier.GPU)])  # type: ignore[list-item]
    assert [item.metric for item in found] == ["throughput", "gap"]
    first, second = found
    assert first.line == (
        "throughput x0.950 [0.930, 0.970] slower (n 8+8, NVIDIA H200, 2026-11-30; against verl0.9.1-vllm0.23.0)"
    )
    assert (round(first.slowdown() or 0, 3), second.slowdown(), second.beyond) == (0.07, None, True)
    assert "beyond its tolerance" in second.line
    assert first.to_json()["n"] == [8, 8]
    cell = parse_name(NAME)
    assert about(cell, {"verl": "0.9.1", "vllm": "0.23.0"}, found) == found
    assert about(cell, {"vllm": "0.22.0"}, found) == ()
    assert about(cell, {}, [*found, _with(first, a="what is this")]) == found


def _with(item: Measured, **more: object) -> Measured:
    from dataclasses import replace

    return replace(item, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "loss"),
    [
        ({"better": "lower", "low": 1.02, "high": 1.05}, 0.048), ({"verdict": "inconclusive"}, None),
        ({"low": None}, None), ({"better": "lower", "high": 0.0}, None), ({"low": 1.01, "high": 1.02}, -0.01),
        ({"ratio": None, "low": True}, None),
    ],
)  # fmt: skip
def test_the_loss_is_the_worst_that_the_interval_lets_in(more: Mapping[str, object], loss: float | None) -> None:
    (found,) = measured([comparison(**more)])  # type: ignore[list-item, arg-type]
    slowdown = found.slowdown()
    assert (slowdown if slowdown is None else round(slowdown, 3)) == loss


def test_a_want_is_ranges_records_and_newest() -> None:
    want = parse_want(["vllm>=0.26", "tf<6", "vllm<1"], ["inspect-aimv2"], [AIMV2], newest=True)
    assert want.words == "vllm<1,>=0.26, transformers<6, the newest, rid of inspect-aimv2"
    assert want.unmet({"vllm": Version("0.27"), "transformers": Version("5")}) == ()
    assert want.unmet({"vllm": Version("0.25")}) == (
        "vllm is 0.25, wanted is vllm<1,>=0.26",
        "transformers is not in it",
    )
    assert want.unmet({"vllm": Version("0.9.1"), "transformers": Version("4.55")})[-1] == (
        "known failure inspect-aimv2 still applies"
    )
    lacking = changed(needs="flash-attn not installed", affects={"vllm": ">=0"})
    rid = parse_want([], [lacking.id], [lacking])
    assert rid.unmet({"vllm": Version("1"), "flash-attn": Version("2")}) == ()
    assert len(rid.unmet({"vllm": Version("1")})) == 1
    assert parse_want([], [], []).words == "what is worth choosing"
    for word, message in (
        ("vllm", "does not say which versions"), ("vllm=1", "--to vllm=1"), ("x" * 300, "--to xxx"),
        ("a>=1;python_version>'3'", "which versions"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            parse_want([word], [], [])
    for name, why in (("inspect-aimv3", "Closest: inspect-aimv2."), ("zz", "")):
        with pytest.raises(UsageError, match=f"no record `{name}`") as raised:
            parse_want([], [name], [AIMV2])
        assert raised.value.why == why


def test_what_pip_cannot_do_is_given_to_uv() -> None:
    assert install_command(["verl[vllm]==0.9.1"]) == "pip install 'verl[vllm]==0.9.1'"
    assert install_command(["verl==0.9.1"], no_deps=True) == "pip install --no-deps verl==0.9.1"
    line = install_command(["verl==0.9.1"], overrides=["numpy>=2"])
    assert line.endswith("'numpy>=2' > overrides.txt && uv pip install --overrides overrides.txt verl==0.9.1")


def test_advice_is_the_best_set_of_each_release_by_what_was_observed() -> None:
    gpu = "verl0.9.1-vllm0.26.0-torch2.11.0-tf5.10.4"
    broken = "verl0.8.0-vllm0.24.0"
    seen = [
        observation(NAME, Tier.IMPORT, machine=CPU),
        observation(gpu, Tier.GPU, machine=H200, probe=f"compat/{KEYSTONE}"),
        observation(gpu, Tier.RESOLVE, detail={"versions": {"ray": "2.60.0", "torch": "x y"}}),
        observation(broken, Tier.IMPORT, Outcome.BROKEN, machine=CPU),
        observation("verl0.7.1-vllm0.12.0", Tier.RESOLVE, Outcome.CONFLICT),
        observation("verl0.6.1-vllm0.9.2-tf4.55", Tier.IMPORT, machine=CPU),
        observation("verl0.5.0-vllm0.8.5", Tier.SURFACE),
        observation("verl0.9.1-vllmcpu0.24.0", Tier.IMPORT, machine=CPU), observation("ray2.60.0", Tier.IMPORT),
        observation("no cell", Tier.IMPORT),
    ]  # fmt: skip
    data = advice(seen, failures=[AIMV2], releases=[Version("0.4.0")])
    releases = {row["verl"]: row for row in data["releases"]}  # type: ignore[attr-defined]
    assert list(releases) == ["0.9.1", "0.8.0", "0.7.1", "0.6.1", "0.5.0", "0.4.0"]
    best = releases["0.9.1"]["best"]
    assert (best["cell"], best["tier"], best["machine"], best["proven"]) == (gpu, "gpu", "NVIDIA H200", True)
    assert best["command"] == "pip install verl==0.9.1 vllm==0.26.0 torch==2.11.0 transformers==5.10.4"
    assert best["untested"] == ["import", "behave", "bench"]
    assert [row["cell"] for row in releases["0.9.1"]["others"]] == [NAME]
    whys = {name: row["why"] for name, row in releases.items() if row["best"] is None}
    assert "import: broken for a reason" in whys["0.8.0"]
    assert "conflict" in whys["0.7.1"]
    assert "known failure inspect-aimv2" in whys["0.6.1"]
    assert whys["0.5.0"] == whys["0.4.0"] == "nothing of it was tried on a machine"
    assert releases["0.9.1"]["seen"] == 2
    assert AT.tzinfo is UTC
