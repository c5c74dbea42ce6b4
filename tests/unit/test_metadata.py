from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.cell import Platform
from matrix.errors import CorruptFileError
from matrix.index import File, Metadata
from matrix.index.fetch import Fetcher, Limits
from matrix.index.metadata import _headers, parse_metadata, requirements_on
from matrix.index.simple import SimpleIndex
from tests.unit.http_server import Site, metadata, sdist, serving, wheel

QUICK = Limits(connect=1.0, read=5.0, tries=2, backoff=0.001, longest_wait=0.01)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def index(site: Site, root: Path) -> SimpleIndex:
    return SimpleIndex(cache_dir=root, url=site.url, fetcher=Fetcher(limits=QUICK))


def only_file(site: Site, root: Path) -> tuple[SimpleIndex, File]:
    made = index(site, root)
    (release,) = made.project("demo").releases.values()
    return made, release.files[0]


def named(name: str = "demo-1.0-py3-none-any.whl") -> File:
    return File(
        filename=name,
        url=f"https://x/{name}",
        sha256="0" * 64,
        version=Version("1.0"),
        uploaded=datetime(2026, 1, 1, tzinfo=UTC),
        requires_python=">=3.8",
    )


def parsed(*lines: str, name: str = "demo-1.0-py3-none-any.whl") -> Metadata:
    return parse_metadata("\n".join(["Metadata-Version: 2.1", *lines, ""]).encode(), named(name))


def test_a_wheel_says_what_it_needs() -> None:
    found = parsed(
        "Name: Demo_Pkg",
        "Version: 1.0",
        "Requires-Python: >=3.9",
        "Requires-Dist: torch (==2.4.0)",
        "Requires-Dist: vllm<=0.8.5; extra == 'vllm'",
        "Requires-Dist: ray[default]>=2.41",
        "Provides-Extra: vllm",
        "Provides-Extra: Sg_Lang",
    )
    assert found == Metadata(
        name="demo-pkg",
        version=Version("1.0"),
        requires=(
            Requirement("torch==2.4.0"),
            Requirement('vllm<=0.8.5; extra == "vllm"'),
            Requirement("ray[default]>=2.41"),
        ),
        requires_python=SpecifierSet(">=3.9"),
        extras=("vllm", "sg-lang"),
    )


@pytest.mark.parametrize(
    ("line", "kept", "note"),
    [
        ("Requires-Dist: numpy (>=1.9.*)", 0, "Requires-Dist: numpy (>=1.9.*): not a valid requirement, left out"),
        ("Requires-Dist: torch>=2.0;", 0, "Requires-Dist: torch>=2.0;: not a valid requirement, left out"),
        ("Requires-Dist: pytz (>dev)", 0, "Requires-Dist: pytz (>dev): not a valid requirement, left out"),
        ("Requires-Dist: torch>=2.0\n  ; python_version > '3'", 1, None),
        ("Requires-Python: >=3.6.*.1", 0, "Requires-Python: >=3.6.*.1: not a specifier, left out"),
    ],
)
def test_what_cannot_be_read_is_left_out_with_a_note(line: str, kept: int, note: str | None) -> None:
    found = parsed("Name: demo", "Version: 1.0", line, "Requires-Dist: packaging")
    assert len(found.requires) == kept + 1
    assert found.notes == ((note,) if note else ())


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("Version: one", "Version: one: not a version, the file's name is believed"),
        ("Summary: x", "Version: none: not a version, the file's name is believed"),
        ("Version: 1.0.dev1", "Version: 1.0.dev1, but the file's name says 1.0"),
    ],
)
def test_a_version_that_is_not_the_files(line: str, note: str) -> None:
    assert parsed("Name: demo", line).notes == (note,)


def test_the_index_stands_in_for_a_missing_requires_python() -> None:
    assert parsed("Name: demo", "Version: 1.0").requires_python == SpecifierSet(">=3.8")


@pytest.mark.parametrize(
    ("lines", "static"),
    [
        (["Metadata-Version: 2.2"], True),
        (["Metadata-Version: 2.4", "Dynamic: License-File"], True),
        (["Metadata-Version: 2.4", "Dynamic: Requires-Dist"], False),
        (["Metadata-Version: 2.2", "Dynamic: License", "Dynamic: requires-python"], False),
        (["Metadata-Version: 2.1"], False),
        (["Metadata-Version: new"], False),
        ([], False),
    ],
)
def test_an_sdist_is_static_only_when_it_promises(lines: list[str], static: bool) -> None:
    content = "\n".join([*lines, "Name: demo", "Version: 1.0", ""]).encode()
    found = parse_metadata(content, named("demo-1.0.tar.gz"))
    assert found.static is static
    assert bool(found.notes) is not static
    assert parse_metadata(content, named()).static


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"Name: a\r\nVersion: 1\r\n\r\nLong text\r\n", b"Name: a\nVersion: 1\n"),
        (b"Name: a\nDescription: Long\n        text\n\tmore\nVersion: 1\n", b"Name: a\nVersion: 1\n"),
        (b"Name: a\nRequires-Dist: b\n  ; extra == 'c'\n", b"Name: a\nRequires-Dist: b\n  ; extra == 'c'\n"),
    ],
)
def test_only_the_headers_are_kept(content: bytes, expected: bytes) -> None:
    assert _headers(content) == expected


@pytest.mark.parametrize(
    ("platform", "extras", "expected"),
    [
        (Platform(), (), ["torch", "uvloop", "numpy"]),
        (Platform(python="3.11"), (), ["torch", "tomli", "uvloop", "numpy"]),
        (Platform(machine="aarch64"), (), ["torch", "uvloop"]),
        (Platform(), ("VLLM",), ["torch", "uvloop", "numpy", "vllm", "both"]),
        (Platform(), ("sgl_lang", "vllm"), ["torch", "uvloop", "numpy", "vllm", "sglang", "both"]),
        (Platform(), ("unknown",), ["torch", "uvloop", "numpy"]),
    ],
)
def test_requirements_on_a_platform(platform: Platform, extras: tuple[str, ...], expected: list[str]) -> None:
    found = parsed(
        "Name: demo",
        "Version: 1.0",
        "Requires-Dist: torch==2.4.0",
        "Requires-Dist: tomli; python_version < '3.12'",
        "Requires-Dist: uvloop; sys_platform != 'win32'",
        "Requires-Dist: numpy<2; platform_machine == 'x86_64'",
        "Requires-Dist: vllm; extra == 'vllm'",
        "Requires-Dist: sglang; extra == 'sgl-lang'",
        "Requires-Dist: both; extra == 'vllm' or extra == 'sgl-lang'",
        "Requires-Dist: colorama; sys_platform == 'win32'",
    )
    assert [requirement.name for requirement in requirements_on(found, platform, extras)] == expected


def test_the_metadata_beside_a_wheel_is_enough(site: Site, tmp_path: Path) -> None:
    beside = metadata("demo", "1.0", ["torch"])
    path = site.add(
        "demo", "demo-1.0-py3-none-any.whl", b"never read", **{"core-metadata": {"sha256": sha256(beside).hexdigest()}}
    )
    site.files[f"{path}.metadata"] = beside
    made, file = only_file(site, tmp_path)
    assert [str(r) for r in made.metadata(file).requires] == ["torch"]
    assert made.metadata(file) is made.metadata(file)
    again, file = only_file(site, tmp_path)
    assert again.metadata(file) == made.metadata(file)
    assert site.count(f"{path}.metadata") == 1
    assert site.count(path) == 0


def test_metadata_beside_a_wheel_that_does_not_match_is_fetched_once_more(site: Site, tmp_path: Path) -> None:
    beside = metadata("demo", "1.0", ["torch"])
    path = site.add(
        "demo", "demo-1.0-py3-none-any.whl", b"", **{"core-metadata": {"sha256": sha256(beside).hexdigest()}}
    )
    site.files[f"{path}.metadata"] = beside
    made, file = only_file(site, tmp_path)
    site.faults[f"{path}.metadata"] = ["flipped*"]
    with pytest.raises(CorruptFileError, match=r"whl\.metadata: its SHA-256"):
        made.metadata(file)
    site.faults[f"{path}.metadata"] = ["flipped"]
    assert [str(r) for r in made.metadata(file).requires] == ["torch"]


@pytest.mark.parametrize("promised", [True, False])
def test_a_wheel_without_metadata_beside_it_is_asked_itself(site: Site, tmp_path: Path, promised: bool) -> None:
    content = wheel(
        "demo", "1.0", {"demo/a.py": b"", "demo/_vendor/x-2.dist-info/METADATA": b"Name: x"}, requires=["ray"]
    )
    site.add("demo", "demo-1.0-py3-none-any.whl", content, **{"core-metadata": promised})
    made, file = only_file(site, tmp_path)
    found = made.metadata(file)
    assert (found.name, [str(r) for r in found.requires]) == ("demo", ["ray"])


def test_a_wheel_with_anothers_dist_info_too(site: Site, tmp_path: Path) -> None:
    content = wheel("demo", "1.0", {"aaa-9.dist-info/METADATA": metadata("aaa", "9")}, requires=["ray"])
    site.add("demo", "demo-1.0-py3-none-any.whl", content)
    made, file = only_file(site, tmp_path)
    assert made.metadata(file).name == "demo"


def test_a_wheel_that_has_no_metadata_at_all(site: Site, tmp_path: Path) -> None:
    site.add("demo", "demo-1.0-py3-none-any.whl", wheel("demo", "1.0", {}).replace(b"METADATA", b"METADATE"))
    made, file = only_file(site, tmp_path)
    with pytest.raises(CorruptFileError, match="it has no METADATA"):
        made.metadata(file)


def test_an_sdists_own_pkg_info_is_the_topmost(site: Site, tmp_path: Path) -> None:
    members = {
        "demo.egg-info/PKG-INFO": metadata("other", "1.0"),
        "PKG-INFO": metadata("demo", "1.0", ["torch"]),
    }
    site.add("demo", "demo-1.0.tar.gz", sdist("demo", "1.0", members))
    made, file = only_file(site, tmp_path)
    found = made.metadata(file)
    assert (found.name, found.static, [str(r) for r in found.requires]) == ("demo", False, ["torch"])


def test_an_sdist_without_pkg_info_says_nothing_for_sure(site: Site, tmp_path: Path) -> None:
    site.add("demo", "demo-1.0.tar.gz", sdist("demo", "1.0", {"setup.py": b""}))
    made, file = only_file(site, tmp_path)
    found = made.metadata(file)
    assert (found.name, found.version, found.requires, found.static) == ("demo", Version("1.0"), (), False)
