"""The classes of error and the variables that hurt: the files are right, and each says of its own sample what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.doctor.checkup import Grade
from matrix.doctor.classes import ErrorClass, Role, classify, load_classes
from matrix.doctor.variables import check_variables, load_harmful
from matrix.errors import DataError

_RAISED = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Timeout|Exit))(?:: .*)?$", re.DOTALL)


@pytest.mark.parametrize("known", load_classes(), ids=lambda known: known.id)
def test_each_sample_is_of_its_class(known: ErrorClass) -> None:
    raised = _RAISED.match(known.sample)
    found = classify(raised[1] if raised else "", known.sample)
    assert found is not None
    assert found[0].id == known.id


def test_facts_are_read_from_the_message() -> None:
    found = classify(
        "OutOfMemoryError",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
        "79.25 GiB of which 1.04 GiB is free. Of the allocated memory 74.10 GiB is allocated by PyTorch, and 2.60 GiB "
        "is reserved by PyTorch but unallocated.",
    )
    assert found is not None
    assert found[1] == {
        "asked": "2.00 GiB",
        "gpu": "1",
        "total": "79.25 GiB",
        "free": "1.04 GiB",
        "allocated": "74.10 GiB",
        "reserved": "2.60 GiB",
    }


@pytest.mark.parametrize(
    ("exception", "text", "expected"),
    [
        ("ValueError", "ValueError: no", None),
        ("", "ModuleNotFoundError: No module named 'x'", None),
        ("RuntimeError", "RuntimeError: No module named 'x'", None),
        ("CalledProcessError", "died with <Signals.SIGSEGV: 11>.", "native-crash"),
        ("CalledProcessError", "died with <Signals.SIGKILL: 9>.", "host-out-of-memory"),
        ("", "Killed", "host-out-of-memory"),
        ("", "the process was Killed by me", None),
        ("RuntimeError", "unable to open shared memory object </torch_1>: Too many open files (24)", "too-many-files"),
        ("RuntimeError", "unable to open shared memory object </torch_1>: No space left on device", "disk-full"),
        ("", "Unexpected bus error encountered in worker, by insufficient shared memory (shm).", "disk-full"),
        ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", "no-kernel-image"),
        ("", "CUDA capability sm_120 is not compatible with the current PyTorch installation", "no-kernel-image"),
        ("AttributeError", "'vLLMRollout' object has no attribute 'execute_method'", "attribute-missing"),
        ("AttributeError", "module 'vllm.envs' has no attribute 'X'", "attribute-missing"),
        ("AttributeError", "'NoneType' object has no attribute 'to'", "none-used"),
        ("ValidationError", "max_num_batched_tokens (8) is smaller than max_model_len (9).", "batched-tokens-too-few"),
        ("NotImplementedError", "sequence_length=9 is larger than max_length=4", "prompt-too-long"),
        ("NotImplementedError", "NotImplementedError: ", None),
    ],
)
def test_classes(exception: str, text: str, expected: str | None) -> None:
    found = classify(exception, text)
    assert (found[0].id if found else None) == expected


CLASS = """schema = 1
[[class]]
id = "x"
title = "t"
role = "root"
pattern = 'a'
known = "k"
sample = "a"
source = "s"
checked = 2026-11-30
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pattern = 'a'", "pattern = '('", "not a regular expression"),
        ('role = "root"', 'role = "toor"', "is none of root"),
        ('sample = "a"', 'sample = "b"', "not matched"),
        ('known = "k"', "", "known: is missing"),
    ],
)
def test_a_wrong_class_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "generic.toml"
    file.write_text(CLASS.replace(old, new))
    with pytest.raises(DataError, match=message):
        load_classes(file)


def test_a_right_class_is_read(tmp_path: Path) -> None:
    file = tmp_path / "generic.toml"
    file.write_text(CLASS)
    (found,) = load_classes(file)
    assert (found.id, found.role, found.loose, found.next) == ("x", Role.ROOT, False, ())


ALLOC = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}


@pytest.mark.parametrize(
    ("variables", "vllm", "grades"),
    [
        ({}, "0.9.2", [Grade.OK]),
        (ALLOC, "0.9.2", [Grade.BAD]),
        (ALLOC, "0.24.0", [Grade.OK]),
        (ALLOC, None, [Grade.OK]),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, None, [Grade.WARN]),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, None, [Grade.OK]),
    ],
)
def test_variables_that_hurt(variables: dict[str, str], vllm: str | None, grades: list[Grade]) -> None:
    versions = {"vllm": Version(vllm) if vllm else None}
    assert [check.grade for check in check_variables(variables, versions)] == grades


def test_a_wrong_variable_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "variables.toml"
    text = '[[variable]]\nname = "A"\nvalue = "("\ngrade = "warn"\nwhy = "w"\nthen = "t"\nsource = "s"\n'
    file.write_text("schema = 1\n" + text)
    with pytest.raises(DataError):
        load_harmful(file)


def test_every_variable_has_a_source() -> None:
    assert all(item.source and item.why and item.then for item in load_harmful())
