"""Words and data files that make no sense: each has its exit code and a message that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import cli_home
from tests.unit.cli_home import ONE, told
from tests.unit.cli_stack import CELLS, check_golden, steady
from tests.unit.http_server import Site

shared = pytest.fixture(scope="module")(cli_home.served)
site = pytest.fixture(cli_home.served)
bare = pytest.fixture(scope="module")(cli_home.bare)
home = pytest.fixture(cli_home.home)
_settled = pytest.fixture(autouse=True)(cli_home.settled)


WORDS = {
    "unknown-package": (2, "check verll==0.9.1"),
    "unknown-package-without-a-near-one": (2, "check numpy==2.0"),
    "unknown-version": (4, "surface verl==0.9.1 vllm==0.24.9"),
    "malformed-specifier": (2, "check vllm=0.24"),
    "malformed-version": (2, "check vllm==0,24"),
    "no-spec": (2, "check"),
    "unknown-command": (2, "chekc verl==0.9.1"),
    "unknown-option": (2, "check verl==0.9.1 --ofline"),
    "unknown-tier": (2, "check verl==0.9.1 --tiers resolv"),
    "a-tier-that-cannot-be-tried": (2, "check verl==0.9.1 --tiers bench"),
    "no-tier": (2, "check verl==0.9.1 --tiers ,"),
    "no-workers": (2, "check verl==0.9.1 --workers 0"),
    "no-date": (2, "check verl==0.9.1 --exclude-newer soon"),
    "no-python": (2, "check verl==0.9.1 --python 3"),
    "no-platform": (2, "check verl==0.9.1 --platform win_amd64"),
    "malformed-override": (2, "check verl==0.9.1 --override numpy<<2"),
    "no-address": (2, "check verl==0.9.1 --index-url pypi"),
    "cells-that-nobody-planned": (2, "run --cells verl0.9.1-vllm0.42* --cells-file HOME/cells.toml"),
    "cells-far-from-everything": (2, "run --cells zzz --cells-file HOME/cells.toml"),
    "a-group-that-nobody-named": (2, "run --cells group:cii --cells-file HOME/cells.toml"),
    "an-open-brace": (2, "run --cells verl{0.9.1 --cells-file HOME/cells.toml"),
    "unknown-status": (2, "run --fail-on borken --cells-file HOME/cells.toml"),
    "surface-of-an-open-axis": (2, "surface verl==0.9.1 vllm>=0.24"),
    "surface-of-verl-alone": (2, "surface verl==0.9.1"),
    "surface-without-verl": (2, "surface vllm==0.24.0 torch==2.11.0"),
    "bisect-with-ends-swapped": (2, "bisect --axis vllm --with verl==0.9.1 --good 0.27.0 --bad 0.24.0"),
    "bisect-with-a-bad-good-end": (2, "bisect --axis vllm --with verl==0.9.1 --good 0.27.0 --bad 0.28.0"),
    "bisect-from-an-unknown-release": (4, "bisect --axis vllm --with verl==0.9.1 --good 0.24.9 --bad 0.27.0"),
    "bisect-of-an-unknown-axis": (2, "bisect --axis vlm --with verl==0.9.1 --good 0.24.0 --bad 0.27.0"),
    "bisect-of-a-fixed-axis": (2, "bisect --axis vllm --with vllm==0.24.0 --good 0.24.0 --bad 0.27.0"),
    "grid-of-one-axis": (2, "grid --x verl --y verl"),
    "grid-of-no-release": (2, "grid --x-only 7.*"),
    "report-of-nothing": (10, "report --cells-file HOME/cells.toml"),
    "check-of-nothing": (10, "check vllm==0.24.0 --tiers surface"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_make_no_sense_are_told_with_what_to_do(shared: Site, home: Path, name: str) -> None:
    code, words = WORDS[name]
    heard = told(words, home, shared.url)
    assert heard.code == code
    assert heard.out == ""
    assert len(heard.err.splitlines()) >= 2, "a message says what happened and what to do"
    check_golden(f"error-{name}.txt", steady(heard.text, (home, "HOME")))


NINES = "9" * 3_000
LONG = {
    "a word longer than any path": (2, f"check verl=={NINES * 40}"),
    "a version": (2, f"check verl=={NINES}"),
    "a version with the others": (2, f"check verl==0.9.1 vllm=={NINES}"),
    "a number": (2, f"check {ONE} --workers {NINES}"),
    "hours that no clock counts": (2, f"check {ONE} --max-age 99999999999"),
    "a date": (2, f"check {ONE} --exclude-newer {NINES}"),
    "a python": (2, f"check {ONE} --python 3.{NINES}"),
    "a platform": (2, f"check {ONE} --platform manylinux_2_{NINES}"),
    "an override": (2, f"check {ONE} --override numpy=={NINES}"),
    "a pattern": (2, f"run --cells {NINES} --cells-file HOME/cells.toml"),
    "an option": (2, f"check {ONE} --{NINES}"),
    "a command": (2, NINES),
    "an end of a bisection": (2, f"bisect --axis vllm --with verl==0.9.1 --good {NINES} --bad 0.27.0"),
}


@pytest.mark.parametrize("name", LONG)
def test_words_of_any_length_are_refused_and_not_said_again_in_full(shared: Site, home: Path, name: str) -> None:
    code, words = LONG[name]
    heard = told(words, home, shared.url)
    assert (heard.code, heard.out) == (code, "")
    assert len(heard.err) < 1_000
    assert "Traceback" not in heard.err


FILES: dict[str, tuple[int, str | None]] = {
    "missing": (3, None),
    "not-toml": (3, "schema = 1\n[[cell]\n"),
    "no-schema": (3, CELLS.replace("schema = 1", "")),
    "newer-schema": (11, CELLS.replace("schema = 1", "schema = 7")),
    "mistyped": (3, CELLS.replace('reason = "An image."', "reason = 3")),
    "misspelled": (3, CELLS.replace("groups", "gruops")),
    "no-version": (3, CELLS.replace('vllm = "0.24.0"', 'vllm = "0.24,0"')),
    "empty": (10, "schema = 1\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_data_file_that_is_wrong_is_told_by_path_and_field(shared: Site, home: Path, name: str) -> None:
    code, text = FILES[name]
    (home / "cells.toml").unlink()
    if text is not None:
        (home / "cells.toml").write_text(text, encoding="utf-8")
    heard = told("run --list --cells-file HOME/cells.toml", home, shared.url)
    assert heard.code == code
    check_golden(f"error-file-{name}.txt", steady(heard.text, (home, "HOME")))


def test_a_data_file_that_is_a_folder_or_not_text_is_told_too(shared: Site, home: Path) -> None:
    (home / "folder").mkdir()
    (home / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("folder", "bytes"):
        heard = told(f"run --list --cells-file HOME/{name}", home, shared.url)
        assert heard.code == 3
        assert str(home / name) in heard.err
