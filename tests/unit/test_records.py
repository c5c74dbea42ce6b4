"""The records of known failures: what a file may hold, what is refused, and that the shipped ones are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.axes import load_axes
from matrix.errors import DataError, NewerSchemaError
from matrix.failure import Confidence, Failure, Family
from matrix.known import faults
from matrix.records import load_failures

ROOT = Path(__file__).parents[2]
WHOLE = {
    "id": '"a-b"',
    "title": '"t"',
    "affects": '{ vllm = ">=0.9,<0.10" }',
    "cause": '"c"',
    "way_out": '["w"]',
    "sources": '["vllm-project/vllm#1"]',
    "testable": '"import"',
    "confidence": '"measured"',
    "severity": '"high"',
    "effect": '"breaks-import"',
    "default_path": "true",
    "probe": '"test_inspect.py::test_a"',
    "checked": "2026-11-30",
    "fingerprint": "{ exception = 'ValueError', pattern = 'already', example = 'ValueError: already' }",
}


def _file(path: Path, *records: dict[str, str], head: str = 'schema = 1\nfamily = "inspect"\n') -> Path:
    body = "".join(
        "[[failure]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items()) for fields in records
    )
    path.write_text(head + body, encoding="utf-8")
    return path


def _with(**fields: str | None) -> dict[str, str]:
    return {name: value for name, value in {**WHOLE, **fields}.items() if value is not None}


def test_a_whole_record_is_read(tmp_path: Path) -> None:
    (found,) = load_failures([_file(tmp_path / "x.toml", _with(mended='{ vllm = ">=0.10" }', needs='"Ovis"'))])
    assert (found.id, found.family, found.needs) == ("a-b", Family.INSPECT, "Ovis")
    assert (str(found.affects["vllm"]), str(found.mended["vllm"])) == ("<0.10,>=0.9", ">=0.10")
    assert found.confidence is Confidence.MEASURED


SILENT = "{ observable = 'x is 2, not 1' }"
REFUSED = {
    "no source": (_with(sources=None), "failure[0].sources: is missing"),
    "an empty list of sources": (_with(sources="[]"), "failure[0].sources: is empty"),
    "a blank source": (_with(sources='[" "]'), "failure[0].sources[0]: must be a string that is not empty"),
    "no range": (_with(affects=None), "failure[0].affects: is missing"),
    "an empty range": (_with(affects="{}"), "names no package"),
    "a malformed range": (_with(affects='{ vllm = "0.9 up" }'), "failure[0].affects.vllm: `0.9 up` is not a range"),
    "a package misspelled": (_with(affects='{ flash_attn = ">1" }'), "is written flash-attn on the index"),
    "no fingerprint": (_with(fingerprint=None), "failure[0].fingerprint: is missing"),
    "an empty fingerprint": (_with(fingerprint="{}"), "failure[0].fingerprint.pattern: is missing"),
    "a broken pattern": (_with(fingerprint="{ pattern = '(' }"), "is not a regular expression"),
    "an example of something else": (_with(fingerprint="{ pattern = 'a', example = 'b' }"), "is not matched"),
    "silent without observable": (_with(silent="true"), "failure[0].fingerprint.observable: is missing"),
    "no probe": (_with(probe=None), "needs a probe, or `unprobed`"),
    "probe and unprobed": (_with(unprobed='"gpu"'), "and not both"),
    "a probe that is no pytest id": (_with(probe='"inspect"'), "is not written like"),
    "an id with capitals": (_with(id='"A b"'), "is not lower case words"),
    "an unknown word": (_with(severity='"huge"'), "`huge` is none of high, medium, low"),
    "an unknown field": (_with(causes='"x"'), "failure[0].causes: unknown field; did you mean cause?"),
    "a feature of an ordinary run": (_with(feature='"LoRA"'), "failure[0].feature"),
    "no feature": (_with(default_path="false"), "failure[0].feature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_record_that_is_not_whole_is_refused(tmp_path: Path, case: str) -> None:
    fields, says = REFUSED[case]
    with pytest.raises(DataError) as caught:
        load_failures([_file(tmp_path / "x.toml", fields)])
    assert says in str(caught.value)
    assert "x.toml" in str(caught.value)


def test_a_silent_record_needs_no_pattern(tmp_path: Path) -> None:
    (found,) = load_failures([_file(tmp_path / "x.toml", _with(silent="true", fingerprint=SILENT))])
    assert found.silent
    assert not found.fingerprint.matches("x is 2, not 1")


def test_a_record_may_say_that_its_probe_plants_the_trigger(tmp_path: Path) -> None:
    for text, expected in (("true", True), ("false", False), (None, False)):
        (found,) = load_failures([_file(tmp_path / "x.toml", _with(planted=text))])
        assert found.planted is expected


def test_an_id_is_used_once_over_all_files(tmp_path: Path) -> None:
    files = [_file(tmp_path / name, _with()) for name in ("x.toml", "y.toml")]
    with pytest.raises(DataError, match=r"y\.toml: failure\[0\]\.id: `a-b` is recorded twice"):
        load_failures(files)


def test_a_file_says_its_family_and_schema(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="family: `x` is none of"):
        load_failures([_file(tmp_path / "x.toml", _with(), head='schema = 1\nfamily = "x"\n')])
    with pytest.raises(NewerSchemaError):
        load_failures([_file(tmp_path / "x.toml", _with(), head='schema = 2\nfamily = "inspect"\n')])


@pytest.fixture(scope="module")
def shipped() -> tuple[Failure, ...]:
    return load_failures()


def test_every_family_has_its_file() -> None:
    assert sorted(path.stem for path in (ROOT / "matrix" / "failures").glob("*.toml")) == sorted(Family)


def test_the_shipped_records_are_sound(shipped: tuple[Failure, ...]) -> None:
    assert list(faults(shipped, load_axes(), ROOT / "tests" / "compat")) == []


def test_the_shipped_records_are_finished(shipped: tuple[Failure, ...]) -> None:
    """A draft says TODO; a record on which nobody has decided is no record."""
    for failure in shipped:
        told = " ".join((failure.feature, failure.unprobed, failure.note, failure.cause, *failure.way_out))
        assert "TODO" not in told, failure.id
        assert "DRAFT" not in told, failure.id
        assert failure.confidence is not Confidence.MEASURED or failure.probe or failure.unprobed, failure.id
