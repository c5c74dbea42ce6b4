"""Claims: the shipped records, every kind of check as a table, verdicts, results, the command, the report's section."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version

import matrix.cli.wiring
from matrix.claims import results
from matrix.claims.checks import Check, Look, readers
from matrix.claims.claim import TITLES, Claim, ClaimVerdict, How, Topic
from matrix.claims.judging import SHOWN, Judged, judge, spans, unchecked, weigh
from matrix.claims.library import Library
from matrix.claims.loading import FOLDER, load_claims, load_guides
from matrix.claims.observing import Reproduced
from matrix.claims.results import SHIPPED, known, read_results, write_results
from matrix.cli import claims as command
from matrix.datafile import Table, parse
from matrix.errors import DataError, IndexUnreachableError, NewerSchemaError, NothingRanError, UsageError
from matrix.records import load_failures
from matrix.tier import Outcome
from reports.claims import section
from tests.unit.fakes import FakeIndex, FakeRelease

TODAY = date(2026, 11, 30)
ROOT = Path(__file__).parents[2]
YAML = "trainer:\n  save_freq: -1\n  nnodes: 1\nactor:\n  lr: 1e-06\n"
TRAINER = "class RayPPOTrainer:\n    x: int = 1\n    def fit(self): config.trainer.save_freq\n"
PPO = "verl/trainer/ppo/ray_trainer.py"
MAIN = "verl/trainer/main_ppo.py"
SCORE = (
    "import re\n\n\ndef default_compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    "    if data_source == 'openai/gsm8k':\n        from . import gsm8k\n\n"
    "        return gsm8k.compute_score(solution_str, ground_truth)\n    raise NotImplementedError\n"
)
GSM8K = (
    "import re\n\n\ndef extract_solution(text, method='strict'):\n    if method == 'strict':\n"
    "        found = re.search('#### (\\\\-?[0-9\\\\.\\\\,]+)', text)\n"
    "        return found.group(1).replace(',', '').replace('$', '') if found else None\n"
    "    return re.findall('(\\\\-?[0-9\\\\.\\\\,]+)', text)\n\n\n"
    "def compute_score(text, truth, method='strict'):\n    return extract_solution(text, method) == truth\n"
)


def _verl(version: str) -> FakeRelease:
    """Return a release of verl that is small and like a real one."""
    files = {
        "verl/__init__.py": "import torch\n__version__ = 'x'\n",
        "verl/version/version": version + "\n",
        "verl/trainer/main_ppo.py": '"""Main."""\nimport hydra\n\n\ndef main(config, *, task=None):\n    """Run."""\n',
        "verl/trainer/config/ppo_trainer.yaml": YAML,
        PPO: TRAINER,
        "verl/utils/reward_score/__init__.py": SCORE,
        "verl/utils/reward_score/gsm8k.py": GSM8K,
        "verl/utils/dataset/rl_dataset.py": "x = 1\n",
    }
    if version == "0.9":
        files["verl/new.py"] = "if True:\n    try:\n        import a.b\n    except ImportError:\n        b = 2\n"
    requires = ["numpy>=2" if version == "0.9" else "numpy<2", "ray[default]>=2.41"]
    return FakeRelease(files=files, requires=requires, extras=["test"], requires_python=">=3.10")


INDEX = FakeIndex(
    {
        "verl": {"0.8": _verl("0.8"), "0.9": _verl("0.9"), "1.0.dev0": _verl("1.0.dev0")},
        "vllm": {"0.6": FakeRelease(requires=["torch==2.4.0"], tags="cp38-abi3-manylinux_2_31_x86_64")},
        "torch": {"2.4.0": FakeRelease(), "2.6.0": FakeRelease()},
        "numpy": {"1.26": FakeRelease(), "2.1": FakeRelease(requires=["x<1"])},
        "old": {"1.0": FakeRelease(requires=["numpy>2"], sdist_only=True, files={"old-1.0/setup.py": "ARCHS = 1\n"})},
        "both": {"1.0": FakeRelease(requires=["numpy<2"])},
    }
)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(INDEX, tmp_path)


def _check(text: str) -> Check:
    table = parse(f"schema = 1\n[check]\n{text}", Path("x.toml")).table("check")
    kind = table.text("kind")
    found = readers()[kind](table)
    table.end()
    return found


# Kind and fields of a check; what each look says: release, whether it supports, a part of the text.
CHECKS: list[tuple[str, list[tuple[str, bool, str]]]] = [
    ('kind="exists"\npackage="verl"\nversion="0.9"', [("", True, "is on the index")]),
    ('kind="exists"\npackage="verl"\nversion="0.31"', [("", False, "is not on the index")]),
    ('kind="exists"\npackage="none"\nversion="1"', [("", False, "is not on the index")]),
    (
        'kind="requires"\npackage="verl"\nreleases="all"\ndependency="numpy"\nadmits="1.26"',
        [("0.8", True, "numpy<2"), ("0.9", False, "numpy>=2")],
    ),
    ('kind="requires"\npackage="verl"\nreleases="0.9"\ndependency="ray"\nwithin="[default]"', [("0.9", True, "ray")]),
    ('kind="requires"\npackage="verl"\nreleases="0.9"\ndependency="vllm"', [("0.9", False, "nothing of vllm")]),
    ('kind="requires"\npackage="verl"\nreleases="0.9"\ndependency="vllm"\nadmits="1"', [("0.9", True, "nothing")]),
    ('kind="together"\npins=["vllm==0.6", "torch==2.6.0"]', [("", False, "vllm 0.6 requires torch==2.4.0, not 2.6.0")]),
    ('kind="together"\npins=["vllm==0.6", "torch==2.4.0"]', [("", True, "each lets the others in")]),
    ('kind="together"\npins=["vllm==0.7", "torch==2.4.0"]', [("", False, "vllm 0.7 is not on the index")]),
    (
        'kind="together"\npins=["verl=={release}", "both==1.0"]\npackage="verl"\nreleases="all"',
        [("0.8", True, "each lets"), ("0.9", False, "verl 0.9 requires numpy>=2, both 1.0 requires numpy<2")],
    ),
    ('kind="extra"\npackage="verl"\nreleases="0.9"\nname="dev"', [("0.9", False, "extras: test")]),
    ('kind="extra"\npackage="torch"\nreleases="2.6.0"\nname="dev"', [("2.6.0", False, "extras: none")]),
    ('kind="python"\npackage="verl"\nreleases="0.9"\npython="3.9"', [("0.9", False, "Requires-Python: >=3.10")]),
    ('kind="wheels"\npackage="verl"\nreleases="0.9"\npure=true', [("0.9", True, "verl-0.9-py3-none-any.whl")]),
    ('kind="wheels"\npackage="vllm"\nreleases="0.6"\npure=true', [("0.6", False, "manylinux")]),
    ('kind="wheels"\npackage="old"\nreleases="1.0"', [("1.0", False, "old-1.0.tar.gz")]),
    (
        'kind="text"\npackage="verl"\nreleases="all"\npattern="^b = 2|b = 2"\nfiles=["verl/**/*.py", "verl/*.py"]',
        [("0.8", False, "not found in 6 files"), ("0.9", True, "`b = 2`")],
    ),
    ('kind="text"\npackage="verl"\nreleases=">=0.9"\npattern="x"\nfiles=["none/*"]', []),
    (
        'kind="text"\npackage="old"\nreleases="1.0"\npattern="ARCHS"\nfiles=["setup.py"]\nsdist=true',
        [("1.0", True, "ARCHS")],
    ),
    (
        'kind="file"\npackage="verl"\nreleases="all"\npath="verl/*.py"',
        [("0.8", True, "verl/__init__.py"), ("0.9", True, "")],
    ),
    (
        'kind="file"\npackage="verl"\nreleases="all"\npath="**/new.py"',
        [("0.8", False, "no file"), ("0.9", True, "verl/new.py")],
    ),
    ('kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["verl/new.py"]\nname="b"', [("0.9", True, "b = 2")]),
    ('kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["verl/new.py"]\nname="a"', [("0.9", True, "import a.b")]),
    (
        'kind="name"\npackage="verl"\nreleases="0.8"\nmodule=["verl/new.py"]\nname="b"',
        [("0.8", False, "there is no verl/new")],
    ),
    (
        'kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["verl/trainer/ppo/ray_trainer.py"]\nname="RayPPOTrainer.step"',
        [("0.9", False, "does not bind step")],
    ),
    (
        f'kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["{PPO}"]\nname="RayPPOTrainer"\nparameter="x"',
        [("0.9", True, "takes x")],
    ),
    (
        f'kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["x", "{MAIN}"]\nname="main"\nparameter="lr"',
        [("0.9", False, "takes config, task")],
    ),
    (
        'kind="name"\npackage="verl"\nreleases="0.9"\nmodule=["verl/__init__.py"]\nname="__version__"\nvalue="\'x\'"',
        [("0.9", True, "")],
    ),
    (
        'kind="same"\npackage="verl"\nreleases="all"\nmodule=["verl/trainer/main_ppo.py"]\nname="main"',
        [("0.9", True, "as in 0.8")],
    ),
    (
        'kind="same"\npackage="verl"\nreleases="all"\nmodule=["verl/new.py"]\nname="b"',
        [("0.9", False, "otherwise than in 0.8")],
    ),
    (
        'kind="docstring"\npackage="verl"\nreleases="0.9"\nmodule="verl/trainer/main_ppo.py"\nholds="Main"',
        [("0.9", True, "Main.")],
    ),
    (
        'kind="docstring"\npackage="verl"\nreleases="0.9"\nmodule="verl/trainer/main_ppo.py"\nname="main"\nholds="Main"',
        [("0.9", False, "Run.")],
    ),
    (
        'kind="docstring"\npackage="verl"\nreleases="0.9"\nmodule="verl/__init__.py"\nholds="x"',
        [("0.9", False, "none")],
    ),
    ('kind="key"\nreleases="0.9"\nkey="trainer.save_freq"\ndefault="-1"', [("0.9", True, "trainer.save_freq = -1")]),
    ('kind="key"\nreleases="0.9"\nkey="trainer.none"', [("0.9", False, "no key trainer.none")]),
    ('kind="key"\nreleases="0.9"\nkey="actor.lr"\ndefault="1e-05"', [("0.9", False, "1e-06")]),
    ('kind="overrides"\nreleases="0.9"\nwords=["trainer.nnodes=2"]', [("0.9", True, "hydra composes it")]),
    ('kind="overrides"\nreleases="0.9"\nwords=["trainer.none=2"]', [("0.9", False, "none")]),
    (
        'kind="takes_effect"\nreleases="0.9"\nword="trainer.save_freq=2"',
        [("0.9", True, "read at verl/trainer/ppo/ray")],
    ),
    ('kind="takes_effect"\nreleases="0.9"\nword="trainer.nnodes=2"', [("0.9", False, "inert")]),
    ('kind="words"\nwords=["--dry-run"]', [("", False, "unrecognized arguments: --dry-run")]),
    ('kind="words"\nwords=["--cfg=job", "a=1"]', [("", True, "its parser takes them")]),
    ('kind="matches"\npattern="#+ ([0-9,]+)"\nsample="## 1,234"\ngives="1234"', [("", True, "gives 1234")]),
    ('kind="matches"\nsample="#### 72"\ngives="7"\nreleases="0.9"', [("0.9", False, "gives 72")]),
    ('kind="matches"\nsample="72"\nreleases="0.9"', [("0.9", True, "gives nothing")]),
    ('kind="scores"\nsource="openai/gsm8k"\nreleases="0.9"', [("0.9", True, "is scored by")]),
    ('kind="scores"\nsource="data/gsm8k"\nreleases="0.9"', [("0.9", False, "NotImplementedError")]),
    (
        'kind="scores"\nsource="openai/gsm8k"\nresponse="#### 1,000"\ntruth="1000"\nreleases="0.9"',
        [("0.9", True, "takes 1000")],
    ),
    (
        'kind="scores"\nsource="openai/gsm8k"\nresponse="60"\ntruth="72"\nreleases="0.9"',
        [("0.9", False, "takes nothing")],
    ),
    (
        'kind="fits"\nparameters=8000000000\nbytes_each=16\ncopies=2\ncards=2\ngib_each=40\nwhy="Adam"',
        [("", False, "238 GiB at least (16 bytes a parameter: Adam) against 80 GiB")],
    ),
    ('kind="ratio"\nover="1652"\nunder="1176"\ngives="1.405"', [("", True, "= 1.405")]),
    ('kind="ratio"\nover="2"\nunder="3"\ngives="0.7"', [("", True, "= 0.7")]),
    ('kind="logged"\nrun="gpu/raw/ppo-A.metrics.jsonl"\nleast=30', [("", True, "metrics in each of")]),
    ('kind="logged"\nrun="gpu/raw/ppo-A.metrics.jsonl"\nleast=100000', [("", False, "metrics in each of")]),
    ('kind="reproduced"\nfailure="verl-waits-for-logical-cpus"', [("", True, "reproduced on")]),
    ('kind="reproduced"\nfailure="raylet-register-num-cpus"', []),
    ('kind="reproduced"\nfailure="there-is-none"', []),
]


@pytest.mark.parametrize(("text", "expected"), CHECKS, ids=[text.replace("\n", " ")[:90] for text, _ in CHECKS])
def test_checks(library: Library, text: str, expected: list[tuple[str, bool, str]]) -> None:
    check = _check(text)
    found = list(check.look(library))
    assert [(look.release, look.supports) for look in found] == [(release, good) for release, good, _ in expected]
    for look, (_, _, part) in zip(found, expected, strict=True):
        assert part in look.text
        assert look.subject
    assert check.about


def test_every_kind_of_check_is_in_the_table_and_in_the_page() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    kinds = {text.split('"')[1] for text, _ in CHECKS} | {"takes"}
    assert kinds == set(readers())
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


def test_a_check_by_the_surface(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {Version("0.8"): (Outcome.BROKEN, "refuses"), Version("0.9"): (Outcome.DEGRADED, "")}
    monkeypatch.setattr(Library, "surface", lambda self, verl, vllm: said[verl])
    found = list(_check('kind="takes"\nreleases="all"\nvllm="0.6"').look(library))
    assert [(look.supports, look.text) for look in found] == [
        (False, "refuses"),
        (True, "nothing that breaks was found"),
    ]


def test_the_surface_of_small_releases(library: Library) -> None:
    assert library.surface(Version("0.9"), Version("0.6"))[0] in (Outcome.OK, Outcome.UNTESTED)
    assert library.verls() == (Version("0.8"), Version("0.9"))


def _claim(**more: object) -> Claim:
    values: dict[str, object] = {
        "id": "A001", "topic": Topic.PINS, "statement": "x", "guide": "g", "section": "1", **more,
    }  # fmt: skip
    return Claim(**values)  # type: ignore[arg-type]


def _look(release: str, supports: bool) -> Look:
    return Look(subject=f"verl {release}", supports=supports, text="t", place="p", release=release)


class TestJudging:
    @pytest.mark.parametrize(
        ("looks", "beyond", "verdict", "why"),
        [
            ([("0.8", True), ("0.9", True)], "", "holds", "in all 2 releases looked at; verl 0.9: t (p)"),
            ([("0.8", False), ("0.9", False)], "", "false", "in none of 2 releases; verl 0.9: t (p)"),
            ([("0.8", True), ("0.9", False)], "", "depends", "holds in 0.8, not in 0.9"),
            ([("0.8", True), ("0.9", False)], "more", "depends", "holds in 0.8, not in 0.9; more"),
            ([("0.8", True)], "but", "depends", "but"),
            ([("0.8", False)], "but", "false", "verl 0.8: t (p)"),
            ([("", True)], "", "holds", "verl : t (p)"),
            ([("", False), ("0.8", True)], "", "false", "verl : t (p)"),
            ([("0.8", True), ("0.8", False), ("0.9", True)], "", "depends", "holds in 0.9, not in 0.8"),
            ([], "", "untested", "nothing was found to look at"),
        ],
    )
    def test_verdicts(self, looks: list[tuple[str, bool]], beyond: str, verdict: str, why: str) -> None:
        found = weigh(_claim(beyond=beyond), [_look(*look) for look in looks], TODAY, "1")
        assert (found.verdict.value, found.why) == (verdict, why)

    def test_only_some_looks_are_kept_and_both_sides_of_them(self) -> None:
        looks = [_look(f"0.{number}", number > 2) for number in range(20)]
        found = weigh(_claim(), looks, TODAY, "1")
        assert (len(found.looks), found.more) == (SHOWN, 20 - SHOWN)
        assert {look.supports for look in found.looks[:2]} == {True, False}
        assert found.why == "holds in 17 releases from 0.3 to 0.19, not in 0.0, 0.1, 0.2"
        assert spans(("a", "b")) == "a, b"

    def test_releases_of_another_package_count_for_all(self, library: Library) -> None:
        checks = (
            _check('kind="extra"\npackage="verl"\nreleases="all"\nname="test"'),
            _check('kind="extra"\npackage="torch"\nreleases="2.4.0"\nname="test"'),
        )
        found = judge(_claim(checks=checks), library, TODAY, "1")
        assert (found.verdict, found.how) == (ClaimVerdict.FALSE, How.COMPUTED)
        assert found.looks[0].subject == "torch 2.4.0"

    def test_what_cannot_be_run_is_untested(self, library: Library) -> None:
        found = judge(
            _claim(checks=(_check('kind="extra"\npackage="verl"\nreleases="7.0"\nname="x"'),)), library, TODAY, "1"
        )
        assert found.verdict is ClaimVerdict.UNTESTED
        assert "a check could not be run: verl 7.0" in found.why

    def test_an_index_that_does_not_answer_is_no_verdict(self, library: Library) -> None:
        class Silent:
            about = "x"

            def look(self, library: Library) -> list[Look]:
                raise IndexUnreachableError("no answer")

        with pytest.raises(IndexUnreachableError):
            judge(_claim(checks=(Silent(),)), library, TODAY, "1")

    def test_readings_and_reasons(self) -> None:
        by_id = {claim.id: claim for claim in load_claims()}
        assert unchecked(by_id["B039"]).how is How.READING
        assert judge(by_id["A044"], None, TODAY, "1").verdict is ClaimVerdict.UNTESTED  # type: ignore[arg-type]
        assert by_id["C003"].uncheckable
        assert not by_id["A044"].uncheckable


class TestShipped:
    def test_the_records(self) -> None:
        claims = load_claims()
        assert len(claims) == 242
        assert len({claim.statement for claim in claims}) >= 238
        assert sum(bool(claim.checks) for claim in claims) >= 150
        assert {claim.guide for claim in claims} == set(load_guides())
        # In our own words, in English: no sign of the guides' language in a statement.
        assert [claim.id for claim in claims if any("\u3000" <= char <= "\u9fff" for char in claim.statement)] == []
        assert set(TITLES) == set(Topic)

    def test_what_they_link_to_is_there(self) -> None:
        from matrix.datafile import read

        failures = {failure.id for failure in load_failures()}
        benches = {table.text("id") for table in read(ROOT / "bench" / "claims.toml").tables("claim")}
        for claim in load_claims():
            assert set(claim.failures) <= failures, claim.id
            inner = [getattr(check, "check", check) for check in claim.checks]
            assert {check.failure for check in inner if isinstance(check, Reproduced)} <= failures, claim.id
            assert set(claim.pairings) <= benches, claim.id

    def test_every_claim_with_checks_has_a_result_of_those_checks(self) -> None:
        claims = load_claims()
        found = dict(zip((claim.id for claim in claims), known(claims, SHIPPED), strict=True))
        assert [claim.id for claim in claims if claim.checks and found[claim.id].how is not How.COMPUTED] == []
        assert set(read_results(SHIPPED)) == {claim.id for claim in claims if claim.checks}
        for judged in found.values():
            assert judged.why
            if judged.how is How.COMPUTED:
                again = weigh(
                    next(claim for claim in claims if claim.id == judged.id), judged.looks, TODAY, "1", judged.asked
                )
                if not judged.more:
                    # What is kept of the looks comes to the verdict that is kept.
                    assert again.verdict is judged.verdict, judged.id

    def test_the_section_of_the_report(self) -> None:
        found = section(None)
        assert found is not None
        assert sum(found["counts"].values()) == 242  # type: ignore[attr-defined]
        assert found["hows"]["computed"] >= 150  # type: ignore[index]
        assert json.loads(json.dumps(found)) == found
        assert len(found["topics"]) == len(Topic)  # type: ignore[arg-type]


RECORD = 'schema = 1\ntopic = "pins"\n[[claim]]\nid = "A001"\nstatement = "s"\nguide = "beginners"\nsection = "1"\n'


class TestLoading:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (RECORD, "needs checks, or a reading"),
            (RECORD + 'untested = "x"\n[[claim.check]]\nkind = "words"\nwords = ["a"]', "one of them only"),
            (RECORD + '[[claim.check]]\nkind = "magic"', "`magic` is none of docstring"),
            (RECORD + '[[claim.check]]\nkind = "words"\nwords = ["a"]\nwrods = 1', "did you mean words"),
            (RECORD + '[[claim.check]]\nkind = "key"\nkey = "a"\nreleases = "new"', "`new` is neither"),
            (
                RECORD + '[[claim.check]]\nkind="text"\npackage="a"\nreleases="all"\nfiles=["a"]\npattern="("',
                "expression",
            ),
            (RECORD + '[[claim.check]]\nkind="matches"\npattern="("\nsample="a"', "expression"),
            (RECORD + '[[claim.check]]\nkind="ratio"\nover="a"\nunder="1"\ngives="1"', "is no number"),
            (RECORD + '[[claim.check]]\nkind="logged"\nrun="none"\nleast=1', "there is no none"),
            (
                RECORD + '[claim.reading]\nverdict = "untested"\nrests_on = "x"\non = 2026-11-30',
                "`untested` is none of",
            ),
            (RECORD.replace("A001", "a1") + 'untested = "x"', "capital letter and three digits"),
            (RECORD.replace("beginners", "nobody") + 'untested = "x"', "`nobody` is none of"),
            (RECORD.replace("pins", "needles") + 'untested = "x"', "`needles` is none of"),
            (RECORD + 'untested = "x"\n' + RECORD.partition('"pins"\n')[2] + 'untested = "x"', "recorded twice"),
            (RECORD.replace("= 1", "= 2", 1), "schema 2"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "pins.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises((DataError, NewerSchemaError), match=message):
            load_claims([path])

    def test_a_check_that_is_denied(self, tmp_path: Path, library: Library) -> None:
        path = tmp_path / "pins.toml"
        path.write_text(RECORD + '[[claim.check]]\nkind = "exists"\npackage = "verl"\nversion = "0.9"\nnot = true')
        (claim,) = load_claims([path])
        assert claim.checks[0].about == "it is not so that verl 0.9 is on the index"
        assert judge(claim, library, TODAY, "1").verdict is ClaimVerdict.FALSE


class TestResults:
    def _judged(self, **more: object) -> Judged:
        values: dict[str, object] = {
            "id": "A001", "verdict": ClaimVerdict.FALSE, "how": How.COMPUTED, "why": "w",
            "looks": (_look("0.9", False),), "fails": ("0.9",), "on": TODAY, "tool": "1", "asked": ("x",), **more,
        }  # fmt: skip
        return Judged(**values)  # type: ignore[arg-type]

    def test_they_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "sub" / "claims.json"
        first, second = self._judged(), self._judged(id="A002", on=None)
        write_results(path, [second])
        write_results(path, [first])
        assert read_results(path) == {"A001": first, "A002": second}

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("{", DataError),
            ("[]", DataError),
            ('{"schema": 1, "claims": [{"id": "A001"}]}', DataError),
            ('{"schema": 1, "claims": [{"id": "A001", "looks": 1, "on": null}]}', DataError),
            ('{"schema": 2, "claims": []}', NewerSchemaError),
        ],
    )
    def test_files_that_cannot_be_read(self, tmp_path: Path, text: str, error: type[Exception]) -> None:
        path = tmp_path / "claims.json"
        path.write_text(text)
        with pytest.raises(error):
            read_results(path)

    def test_the_latest_answer_to_the_same_checks_counts(self, tmp_path: Path) -> None:
        class Asked:
            about = "x"

        claim = _claim(checks=(Asked(),))
        old, new, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
        write_results(old, [self._judged(on=date(2026, 1, 1))])
        write_results(new, [self._judged(verdict=ClaimVerdict.HOLDS)])
        write_results(other, [self._judged(asked=("another",))])
        assert known([claim], old, new, other, tmp_path / "none")[0].verdict is ClaimVerdict.HOLDS
        write_results(old, [self._judged(verdict=ClaimVerdict.DEPENDS)])
        assert known([claim], new, old)[0].verdict is ClaimVerdict.DEPENDS
        assert known([claim], other)[0].why == "its checks were not run yet"


def _run(words: list[str], home: Path) -> int:
    parser = argparse.ArgumentParser()
    command.words(parser)
    args = parser.parse_args(words)
    args.home = str(home)
    return command.run(args, None)  # type: ignore[arg-type]


class TestCommand:
    def test_list(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert _run(["list", "--topic", "pins", "--guide", "hybridflow", "--verdict", "holds"], tmp_path) == 0
        said = capsys.readouterr().out
        assert said.startswith("pins: Versions and pins\n")
        assert said.splitlines()[-1].startswith(f"{said.count('  holds  ')} holds, of ")
        assert _run([], tmp_path) == 0
        assert ", of 242 claims: " in capsys.readouterr().out

    def test_show(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert _run(["show", "a004", "--id", "B039"], tmp_path) == 0
        said = capsys.readouterr().out
        assert "A004 [pins]: torch 2.6.0 with vLLM 0.6.3.post1" in said
        assert "verdict   false (computed by checks" in said
        assert "against   torch==2.6.0, vllm==0.6.3.post1: vllm 0.6.3.post1 requires torch==2.4.0" in said
        assert "verdict   false (by reading" in said
        assert _run(["show", "A004", "--json"], tmp_path) == 0
        assert json.loads(capsys.readouterr().out)[0]["verdict"] == "false"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["show"], "names no claim"),
            (["show", "A999"], "There is no claim `A999`"),
            (["--topic", "x"], "There is no topic `x`"),
            (["--guide", "x"], "There is no guide `x`"),
            (["--verdict", "x"], "There is no verdict `x`"),
        ],
    )
    def test_words_that_make_no_sense(self, tmp_path: Path, words: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            _run(words, tmp_path)

    def test_check(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(matrix.cli.wiring, "open_index", lambda args, home: INDEX)
        # The small index has no vLLM 0.5.4.post1, as the real one; and none of the releases that C019 is about.
        assert _run(["check", "C018"], tmp_path) == 0
        said = capsys.readouterr().out
        assert "C018  false" in said
        assert "1 claims checked, 0 otherwise" in said
        assert _run(["check", "C019", "--json"], tmp_path) == 1
        assert json.loads(capsys.readouterr().out)[0]["verdict"] == "false"
        assert _run(["check", "C019"], tmp_path) == 1
        assert "C019 was holds in what is shipped, and is false now" in capsys.readouterr().out
        assert set(read_results(tmp_path / "store" / "claims.json")) == {"C018", "C019"}

    def test_nothing_to_check(self, tmp_path: Path) -> None:
        with pytest.raises(NothingRanError, match="None of these claims"):
            _run(["check", "A044"], tmp_path)

    def test_record(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matrix.cli.wiring, "open_index", lambda args, home: INDEX)
        monkeypatch.setattr(results, "SHIPPED", tmp_path / "results.json")
        assert _run(["check", "C018", "--record"], tmp_path) == 0
        assert set(read_results(tmp_path / "results.json")) == {"C018"}


def test_tables_are_read_from_the_package_folder() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == {topic.value for topic in Topic} | {"guides"}
    assert isinstance(parse("schema = 1", Path("x")), Table)
    assert isinstance({}, Mapping)
