"""The data on packages without wheels: what is in it, and how a bad file is refused."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.errors import DataError
from matrix.resolve.sdists import PATH, load_sdists

GOOD = """
schema = 1
[[sdist]]
name = "a"
versions = ["1.0", "1.1"]
requires = ["x>=1"]
source = "a-1.0.tar.gz: setup.py"
checked = 2026-11-30
[[sdist]]
name = "a"
since = "2.0"
requires = []
source = "a-2.0.tar.gz: setup.py"
checked = 2026-11-30
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sdists.toml"
    path.write_text(text)
    return path


def test_the_shipped_file_is_whole_sorted_and_sourced() -> None:
    table = load_sdists()
    names = [entry.name for entry in table.sdists]
    assert names == sorted(names)
    assert all(entry.source and entry.checked <= date.today() for entry in table.sdists)
    assert table.digest.startswith("sha256:")
    assert {"antlr4-python3-runtime", "flash-attn", "pyairports", "pylatexenc"} <= set(names)
    assert PATH.read_text().startswith("#")


@pytest.mark.parametrize(
    ("name", "version", "requires"),
    [
        ("flash-attn", "2.6.3", ["torch", "einops"]),
        ("flash-attn", "2.5.8", ["torch", "einops", "packaging", "ninja"]),
        ("flash-attn", "2.8.3.post2", ["torch", "einops"]),
        ("flash-attn", "1.0.9", None),
        ("antlr4-python3-runtime", "4.9.3", ['typing; python_version < "3.5"']),
        ("antlr4-python3-runtime", "4.8", None),
        ("numpy", "2.0.0", None),
    ],
)
def test_find(name: str, version: str, requires: list[str] | None) -> None:
    found = load_sdists().find(name, Version(version))
    assert (None if found is None else [str(item) for item in found.requires]) == requires


def test_uv_is_told_each_listed_version_and_one_entry_for_an_open_range(tmp_path: Path) -> None:
    config = tomllib.loads(load_sdists(write(tmp_path, GOOD)).uv_config())
    assert config["dependency-metadata"] == [
        {"name": "a", "version": "1.0", "requires-dist": ["x>=1"]},
        {"name": "a", "version": "1.1", "requires-dist": ["x>=1"]},
        {"name": "a", "requires-dist": []},
    ]


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    one = load_sdists(write(tmp_path, GOOD)).digest
    assert load_sdists(write(tmp_path, GOOD.replace("x>=1", "x>=2"))).digest != one


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ("schema = 1", "schema = ", ""),
        ('"x>=1"', '"x>>1"', "sdist[0]"),
        ('"x>=1"', "1", "sdist[0].requires"),
        ('"1.1"', '"one"', "sdist[0]"),
        ('since = "2.0"', "since = 2", "sdist[1].since"),
        ('since = "2.0"', "", "sdist[1]"),
        ('since = "2.0"', 'since = "2.0"\nversions = ["1"]', "sdist[1]"),
        ('name = "a"', 'name = ""', "sdist[0].name"),
        ("checked = 2026-11-30", 'checked = "today"', "sdist[0].checked"),
        ('source = "a-1.0.tar.gz: setup.py"', "", "sdist[0].source"),
        ('name = "a"', 'name = "a"\nextra = 1', "sdist[0]"),
    ],
)
def test_a_bad_file_is_refused_by_field(tmp_path: Path, old: str, new: str, field: str) -> None:
    with pytest.raises(DataError) as caught:
        load_sdists(write(tmp_path, GOOD.replace(old, new, 1)))
    assert caught.value.field == field


def test_entries_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_sdists(write(tmp_path, "schema = 1\nsdist = 3\n"))
    assert caught.value.field == "sdist"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        load_sdists(tmp_path / "none.toml")
