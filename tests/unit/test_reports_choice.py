"""What a cell is worth to somebody who chooses: proof, what speaks against it and for whom, what was not tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.cell import Axis, Cell, Deviation, OpenAxis
from matrix.failure import Failure
from matrix.finding import Effect, Finding
from matrix.observe import Observation
from matrix.records import load_failures
from matrix.tier import Outcome, Tier
from matrix.verdict import Verdict, judge
from reports.choice import ANY, choice_document, weighed
from reports.document import of_its_cells
from reports.failures import Matcher, failures_document, installed
from reports.install import install_document
from tests.unit.run_fakes import AT, cell, finding, observation

PAIR = cell(verl="0.9.1", vllm="0.24.0")
H200 = "x86_64, 16 cores, 128 GiB, 1 x NVIDIA H200"
LOCK: dict[str, object] = {"versions": {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0"}, "packages": 9,
                           "lock": "sha256:" + "a" * 64, "to_build": ["antlr4==4.9"]}  # fmt: skip
RECORDS = load_failures()


def _verdict(
    *findings: Finding, of: Cell = PAIR, deep: tuple[Observation, ...] = (), resolve: Outcome = Outcome.OK
) -> Verdict:
    surface = Outcome.DEGRADED if findings else Outcome.OK
    held = [
        observation(of.name, Tier.RESOLVE, resolve, detail=LOCK if resolve is Outcome.OK else {}),
        observation(of.name, Tier.SURFACE, surface, "it breaks" if findings else "", findings=findings),
    ]
    return judge(of, [*held, *deep])


def _probe(name: str, tier: Tier, outcome: Outcome = Outcome.OK, **detail: object) -> Observation:
    return observation(PAIR.name, tier, outcome, detail=detail, probe=f"compat/{name}", machine=H200)


def _failure(**fields: Any) -> Failure:
    return replace(RECORDS[0], **fields)


def _choice(verdict: Verdict, *known: Failure) -> dict[str, Any]:
    made = choice_document(verdict, weighed(verdict, known), Matcher(RECORDS))
    assert made is not None
    return made


@pytest.mark.parametrize(
    "of",
    [cell(verl="0.9.1"), cell(vllm="0.24.0"), replace(PAIR, as_of=AT)],
    ids=["no vllm", "no verl", "as of a day"],
)
def test_what_no_run_could_be_made_of_is_no_choice(of: Cell) -> None:
    verdict = _verdict(of=of)
    assert choice_document(verdict, weighed(verdict, ()), Matcher(())) is None


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ((), {ANY}),
        ((finding(Effect.BREAKS_FEATURE, feature="lora"),), {ANY, "lora"}),
        # A word of pins covers what verl's own code calls otherwise; what none covers keeps its own name.
        ((finding(Effect.BREAKS_FEATURE, feature="async-rollout"),), {ANY, "async"}),
        ((finding(Effect.BREAKS_FEATURE, feature="qat"),), {ANY, "qat"}),
        ((finding(Effect.GUARDED, feature="lora"),), {ANY}),
        ((finding(Effect.BREAKS_FEATURE, feature="lora", certain=False),), {ANY}),
    ],
)
def test_a_finding_speaks_against_those_who_use_its_feature(findings: tuple[Finding, ...], expected: set[str]) -> None:
    made = _choice(_verdict(*findings))
    assert set(made["against"]) == expected
    assert made["against"][ANY] == []


def test_what_breaks_every_run_stands_under_any_and_not_again_under_a_feature() -> None:
    made = _choice(_verdict(finding(Effect.BREAKS_IMPORT), finding(Effect.BREAKS_FEATURE, feature="lora")))
    assert made["against"] == {ANY: ["surface: it breaks"]}


def test_a_conflict_speaks_against_it_first() -> None:
    made = _choice(_verdict(resolve=Outcome.CONFLICT))
    assert made["against"][ANY][0].startswith("resolve: resolve: conflict")


def test_proof_is_the_deepest_tier_on_a_machine_and_says_what_it_was_not_about() -> None:
    known = next(item for item in RECORDS if item.feature == "lora")
    deep = (
        _probe("test_a.py::test_x", Tier.IMPORT),
        _probe("test_b.py::test_y", Tier.GPU, failure=known.id, seen="absent"),
        _probe("test_ppo_gpu.py::test_ppo_trains", Tier.GPU),
    )
    made = _choice(_verdict(deep=deep))
    assert (made["tier"], made["machine"], made["at"], made["shipped"]) == ("gpu", "NVIDIA H200", "2026-11-30", "")
    assert made["untested"] == ["behave", "bench"]
    assert "megatron" in made["untried"]
    assert "lora" not in made["untried"]
    assert _choice(_verdict())["untried"] == []


def test_records_speak_for_every_run_for_a_feature_or_under_a_condition() -> None:
    affects = {"verl": ">=0.1"}
    from packaging.specifiers import SpecifierSet

    ranges = {name: SpecifierSet(text) for name, text in affects.items()}
    plain = {"affects": ranges, "mended": {}, "planted": False, "severity": RECORDS[0].severity.HIGH}
    always = _failure(id="always", default_path=True, needs="", feature="", **plain)
    lora = _failure(id="of-lora", default_path=False, needs="", feature="lora", **plain)
    if_so = _failure(id="if-so", default_path=True, needs="a driver older than 580", feature="", **plain)
    low = _failure(id="low", default_path=False, needs="", feature="fp8", **{**plain, "severity": always.severity.LOW})
    matcher = Matcher((always, lora, if_so, low))
    verdict = _verdict()
    known = matcher.known(verdict)
    assert [item.id for item in known] == ["always", "of-lora", "if-so", "low"]
    made = _choice(verdict, *known)
    assert made["against"] == {
        ANY: [f"known failure always: {always.title}"],
        "lora": [f"known failure of-lora: {lora.title}"],
    }
    assert made["conditional"] == [{"id": "if-so", "needs": "a driver older than 580"}]


def test_what_is_installed_is_what_is_pinned_and_what_the_lock_has() -> None:
    found = {name: version and str(version) for name, version in installed(_verdict()).items()}
    assert found == {"python": "3.12.0", "verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": None,
                     "flash-attn": None, "ray": None, "tensordict": None}  # fmt: skip
    # Without a lock nothing is known to be absent.
    bare = installed(_verdict(resolve=Outcome.CONFLICT))
    assert set(bare) == {"python", "verl", "vllm"}
    odd = judge(PAIR, [observation(PAIR.name, Tier.RESOLVE, detail={"versions": {"torch": "no version"}})])
    assert installed(odd).get("torch", "unknown") == "unknown"


def test_a_failure_that_names_an_unknown_package_does_not_apply_for_certain() -> None:
    from packaging.specifiers import SpecifierSet

    other = _failure(affects={"numpy": SpecifierSet("<2")})
    assert Matcher((other,)).known(_verdict()) == []


def test_every_record_stands_in_the_document_with_what_was_seen_of_it() -> None:
    record = next(item for item in RECORDS if item.id == "vllm-013-lora-models-path")
    deep = (
        _probe(
            "test_vllm.py::test_l", Tier.IMPORT, Outcome.BROKEN, failure=record.id, seen="reproduced", predicted="yes"
        ),
    )
    (made,) = failures_document([record], [_verdict(deep=deep)])
    assert (made["standing"], made["affects"]["vllm"]) == ("refuted", ">=0.13.0")
    assert made["seen"][0]["cell"] == PAIR.name
    assert made["fingerprint"]["exception"] == "ModuleNotFoundError"
    assert len(failures_document(RECORDS, [])) == len(RECORDS)


COMMANDS = [
    (PAIR, ["verl==0.9.1", "vllm==0.24.0", "torch==2.11.0"]),
    (replace(PAIR, added=("kernels==0.15.0",)), ["kernels==0.15.0"]),
    (replace(PAIR, pins=(replace(PAIR.pins[0], extras=("vllm",)), PAIR.pins[1])), ["'verl[vllm]==0.9.1'"]),
    (replace(PAIR, pins=PAIR.pins[:1], open_axes=(OpenAxis(axis=Axis.TORCH), OpenAxis(axis=Axis.RAY, extras=("a",)))),
     ["torch==2.11.0", "'ray[a]'"]),
    (replace(PAIR, deviation=Deviation(overrides=("numpy<2",))), ["printf '%s\\n' 'numpy<2' > overrides.txt"]),
    (replace(PAIR, deviation=Deviation(no_deps=True)), ["uv pip install --no-deps --exclude-newer"]),
    (replace(PAIR, as_of=AT), ["--exclude-newer 2026-11-30T12:00:00Z"]),
]  # fmt: skip


@pytest.mark.parametrize(("of", "words"), COMMANDS)
def test_the_command_installs_the_cell(of: Cell, words: list[str]) -> None:
    made = install_document(_verdict(of=of))
    for part in words:
        assert part in made["plain"]
    assert "--exclude-newer 2026-11-30T12:00:00Z" in made["plain"]
    assert made["exact"].startswith("verl-matrix env build ")
    assert (made["packages"], made["builds"], made["why_not"]) == (9, ["antlr4==4.9"], "")


def test_a_set_that_does_not_resolve_is_installed_only_without_its_dependencies() -> None:
    waived = install_document(_verdict(of=replace(PAIR, deviation=Deviation(no_deps=True)), resolve=Outcome.CONFLICT))
    assert (waived["exact"], waived["why_not"], waived["deviation"]) == ("", "", "no-deps")
    assert waived["plain"].endswith("uv pip install --no-deps verl==0.9.1 vllm==0.24.0")
    refused = install_document(_verdict(resolve=Outcome.CONFLICT))
    assert (refused["plain"], refused["exact"], refused["lock"], refused["builds"]) == ("", "", "", [])
    assert "is another cell" in refused["why_not"]
    untried = install_document(judge(PAIR, []))
    assert "not tried" in untried["why_not"]


def test_an_answer_about_a_few_cells_tells_of_the_records_that_apply_to_them_or_were_seen() -> None:
    cells = [{"known": {"against": ["a"], "conditional": [], "elsewhere": ["b"]}}]
    rows = [{"id": name, "seen": ["x"] if name == "c" else []} for name in "abcd"]
    made = of_its_cells({"cells": cells, "failures": rows, "schema": 1})
    assert [row["id"] for row in made["failures"]] == ["a", "b", "c"]
    assert made["schema"] == 1
