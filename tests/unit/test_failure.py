"""The failure: when it applies, and when a text shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.failure import Applies, Fingerprint
from tests.unit.failure_samples import AIMV2

YES, NO, UNKNOWN = Applies.YES, Applies.NO, Applies.UNKNOWN


@pytest.mark.parametrize(
    ("vllm", "transformers", "expected"),
    [
        ("0.9.2", "4.57.6", YES),
        ("0.9.2", "4.53.3", NO),
        ("0.10.0", "4.57.6", NO),
        ("0.9.2", "?", UNKNOWN),
        ("0.10.0", "?", NO),
        ("?", "4.53.3", NO),
        ("?", "?", UNKNOWN),
        (None, "4.57.6", NO),
        (None, "?", NO),
        ("0.9.2rc1", "4.57.6", YES),
        ("0.9.2+cpu", "4.57.6", YES),
    ],
)
def test_a_failure_applies_where_all_its_packages_are_in_range(
    vllm: str | None, transformers: str | None, expected: Applies
) -> None:
    given_versions = {"vllm": vllm, "transformers": transformers, "torch": "2.7.0"}
    versions = {name: Version(text) if text else None for name, text in given_versions.items() if text != "?"}
    assert AIMV2.applies(versions) is expected


@given(st.sampled_from(["0.8.5", "0.9.0", "0.9.2", "0.10.0"]), st.sampled_from(["4.53.3", "4.54.0", "5.9.0"]))
def test_learning_a_version_never_turns_a_no_into_a_yes(vllm: str, transformers: str) -> None:
    both = {"vllm": Version(vllm), "transformers": Version(transformers)}
    whole = AIMV2.applies(both)
    for name, version in both.items():
        part = AIMV2.applies({name: version})
        assert part in (whole, UNKNOWN)


@pytest.mark.parametrize(
    ("shown", "text", "expected"),
    [
        (AIMV2.fingerprint, "ValueError: 'aimv2' is already used by a Transformers config", True),
        (AIMV2.fingerprint, "RuntimeError: 'aimv2' is already used by a Transformers config", False),
        (AIMV2.fingerprint, "MyValueError: 'aimv2' is already used", False),
        (AIMV2.fingerprint, "ValueError: 'ovis' is already used", False),
        (AIMV2.fingerprint, "", False),
        (Fingerprint(pattern="^b"), "a\nb", True),
        (Fingerprint(pattern="x", place="vllm/config"), 'File "/v/vllm/config.py"\nx', True),
        (Fingerprint(pattern="x", place="vllm/config"), 'File "/v/verl/config.py"\nx', False),
        (Fingerprint(observable="it is 2"), "it is 2", False),
    ],
)
def test_a_text_shows_a_failure_by_exception_pattern_and_place(shown: Fingerprint, text: str, expected: bool) -> None:
    assert shown.matches(text) is expected
