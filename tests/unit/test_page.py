from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from packaging.version import Version

from matrix.index import UNKNOWN_UPLOAD
from matrix.index.page import NotAPageError, files, split_filename

URL = "https://index.example/simple/flash-attn/"
JSON = "application/vnd.pypi.simple.v1+json"


def page(*rows: dict[str, object]) -> bytes:
    return json.dumps({"meta": {"api-version": "1.0"}, "name": "demo", "files": rows}).encode()


@pytest.mark.parametrize(
    ("project", "name", "expected"),
    [
        ("vllm", "vllm-0.24.0-cp38-abi3-manylinux_2_28_x86_64.whl", ("0.24.0", "cp38-abi3-manylinux_2_28_x86_64")),
        ("vllm", "vllm-0.5.3.post1-cp38-abi3-manylinux1_x86_64.whl", ("0.5.3.post1", "cp38-abi3-manylinux1_x86_64")),
        ("demo", "demo-1.0-2abc-py2.py3-none-any.whl", ("1.0", "py2.py3-none-any")),
        ("demo", "demo-1.0-x-py3-none-any.whl", None),
        ("demo", "demo-not.a.version-py3-none-any.whl", None),
        ("demo", "other-1.0-py3-none-any.whl", None),
        ("demo", "demo-1.0-any.whl", None),
        ("torch", "torch-2.6.0+cu124-cp312-cp312-linux_x86_64.whl", ("2.6.0+cu124", "cp312-cp312-linux_x86_64")),
        ("flash-attn", "flash_attn-2.8.3.tar.gz", ("2.8.3", "")),
        ("flash-attn", "flash-attn-1.0.1.tar.gz", ("1.0.1", "")),
        ("flash-attn", "Flash.Attn-1.0.zip", ("1.0", "")),
        ("flash-attn", "flash_attn-1.0.tar.bz2", None),
        ("flash-attn", "flash_attn-1.0-py3.6.egg", None),
        ("flash-attn", "flash_attn.tar.gz", None),
        ("demo", "demo-1.0.exe", None),
        ("demo", "demo-1.0-final.tar.gz", None),
    ],
)
def test_split_filename(project: str, name: str, expected: tuple[str, str] | None) -> None:
    found = split_filename(project, name)
    assert found == (None if expected is None else (Version(expected[0]), expected[1]))


def test_a_json_row_gives_every_field() -> None:
    (found,) = files(
        "demo",
        URL,
        JSON,
        page(
            {
                "filename": "demo-1.0-py3-none-any.whl",
                "url": "https://files.example/demo-1.0-py3-none-any.whl",
                "hashes": {"sha256": "AB" * 32},
                "requires-python": ">=3.9",
                "size": 42,
                "upload-time": "2026-03-01T12:00:00.123456Z",
                "yanked": "broken",
                "core-metadata": {"sha256": "cd" * 32},
            }
        ),
    )
    assert found.url == "https://files.example/demo-1.0-py3-none-any.whl"
    assert found.sha256 == "ab" * 32
    assert found.size == 42
    assert found.uploaded == datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    assert (found.yanked, found.requires_python, found.tags) == ("broken", ">=3.9", "py3-none-any")
    assert (found.has_metadata, found.metadata_sha256) == (True, "cd" * 32)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"yanked": False}, {"yanked": None}),
        ({"yanked": True}, {"yanked": ""}),
        ({"yanked": ""}, {"yanked": None}),
        ({}, {"yanked": None, "sha256": "", "size": None, "has_metadata": False, "uploaded": UNKNOWN_UPLOAD}),
        ({"core-metadata": True}, {"has_metadata": True, "metadata_sha256": ""}),
        ({"core-metadata": False}, {"has_metadata": False}),
        ({"dist-info-metadata": {"sha256": "ee"}}, {"has_metadata": True, "metadata_sha256": "ee"}),
        ({"requires-python": None}, {"requires_python": ""}),
        ({"size": None, "hashes": {"md5": "x"}}, {"size": None, "sha256": ""}),
        ({"upload-time": "yesterday"}, {"uploaded": UNKNOWN_UPLOAD}),
        ({"upload-time": "2026-01-01T00:00:00"}, {"uploaded": datetime(2026, 1, 1, tzinfo=UTC)}),
        ({"url": "../../files/d.whl"}, {"url": "https://index.example/files/d.whl"}),
        ({"url": "/files/d.whl"}, {"url": "https://index.example/files/d.whl"}),
    ],
)
def test_fields_that_an_index_may_leave_out_or_spell_otherwise(
    row: dict[str, object], expected: dict[str, object]
) -> None:
    name = "demo-1.0-py3-none-any.whl"
    (found,) = files("demo", URL, JSON, page({"filename": name, "url": f"https://x/{name}", **row}))
    assert {field: getattr(found, field) for field in expected} == expected


def test_rows_that_cannot_be_read_are_left_out() -> None:
    good: dict[str, object] = {"filename": "demo-1.0.tar.gz", "url": "https://x/demo-1.0.tar.gz"}
    bad: list[dict[str, object]] = [
        {"filename": "demo-1.0.egg", "url": "x"},
        {"filename": 3, "url": "x"},
        {"filename": "demo-2.0.tar.gz"},
        {"filename": "demo-one.tar.gz", "url": "x"},
    ]
    assert [file.filename for file in files("demo", URL, JSON, page(*bad, good))] == ["demo-1.0.tar.gz"]


def test_a_page_without_a_version_is_of_version_1() -> None:
    assert files("demo", URL, JSON, b'{"files": []}') == ()


def test_an_html_page_gives_what_html_can_say() -> None:
    html = b"""<!DOCTYPE html><html><head><title>Links</title></head><body><h1>Links</h1>
    <a href="../../packages/ab/flash_attn-2.0%2Bcu12-py3-none-any.whl#sha256=ABCD" data-requires-python="&gt;=3.9"
       data-dist-info-metadata="sha256=99">flash_attn-2.0+cu12-py3-none-any.whl</a><br/>
    <a href="https://files.example/flash_attn-1.0.tar.gz" data-yanked="bad wheel" data-core-metadata="true">sdist</a>
    <a href="https://files.example/flash_attn-1.1.tar.gz#md5=1" data-yanked data-core-metadata="false">sdist</a>
    <a name="top">no link</a> <a href="https://files.example/readme.html">no file</a></body></html>"""
    first, second, third = files("flash-attn", URL, "text/html; charset=utf-8", html)
    assert first.filename == "flash_attn-2.0+cu12-py3-none-any.whl"
    assert first.url == "https://index.example/packages/ab/flash_attn-2.0%2Bcu12-py3-none-any.whl"
    assert (first.sha256, first.requires_python, first.version) == ("abcd", ">=3.9", Version("2.0+cu12"))
    assert (first.has_metadata, first.metadata_sha256, first.yanked) == (True, "99", None)
    assert (second.yanked, second.has_metadata, second.sha256) == ("bad wheel", True, "")
    assert (third.yanked, third.has_metadata, third.sha256) == ("", False, "")
    assert {file.uploaded for file in (first, second, third)} == {UNKNOWN_UPLOAD}


def test_an_html_page_may_move_its_base() -> None:
    html = b'<html><head><base href="https://mirror.example/x/"></head><a href="demo-1.0.tar.gz">it</a></html>'
    (found,) = files("demo", URL, "", html)
    assert found.url == "https://mirror.example/x/demo-1.0.tar.gz"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b'{"name": "demo"}'),
        (JSON, b'{"files": {}}'),
        (JSON, b'{"files": [], "meta": {"api-version": "2.0"}}'),
        (JSON, b'{"files": [], "meta": 1}'),
        ("text/plain", b"Please sign in"),
        ("", b""),
    ],
)
def test_what_is_no_page_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(NotAPageError):
        files("demo", URL, kind, body)
