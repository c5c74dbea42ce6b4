from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from matrix.cell import Platform
from matrix.errors import DataError, ProvisionError, UsageError
from matrix.provision.builds import BuildTable, load_builds
from matrix.provision.recipe import read_recipe, wheel_folders
from matrix.resolve.lock import Locked, parse_lock
from matrix.resolve.sdists import load_sdists

HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.12"\n'


def file(name: str, size: int | None = None) -> str:
    sized = f"size = {size}, " if size is not None else ""
    return f'{{ url = "https://x/{name}", upload-time = 2026-03-19T14:22:25Z, {sized}hashes = {{ sha256 = "0" }} }}'


def entry(name: str, version: str = "1.0", *wheels: str, sdist: str = "") -> str:
    lines = [f'name = "{name}"', f'version = "{version}"']
    lines += [f"sdist = {sdist}"] if sdist else []
    if len(wheels) > 1:
        lines += ["wheels = [", *(f"    {wheel}," for wheel in wheels), "]"]
    else:
        lines += [f"wheels = [{wheel}]" for wheel in wheels]
    return "\n".join(lines) + "\n"


def lock(*entries: str) -> str:
    return "\n[[packages]]\n".join([HEAD, *entries])


def locked(name: str, version: str = "1.0") -> Locked:
    return parse_lock(lock(entry(name, version, sdist=file("x.tar.gz")))).packages[0]


SIZES = {
    "one wheel, and an sdist that does not count": (
        entry("a", "1.0", file("a.whl", 7), sdist=file("a.tar.gz", 900)), 7
    ),
    "several wheels: the largest": (entry("a", "1.0", file("1.whl", 7), file("2.whl", 9), sdist=file("a.gz", 99)), 9),
    "an sdist alone": (entry("a", "1.0", sdist=file("a.tar.gz", 900)), 900),
    "no size told": (entry("a", "1.0", file("a.whl")), None),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_size(name: str) -> None:
    text, size = SIZES[name]
    assert read_recipe(lock(text), Platform()).sizes == {"a": size}


def test_every_package_is_said_to_come_from_the_index() -> None:
    recipe = read_recipe(lock(entry("a", "1.0", file("a.whl")), entry("b", "2", sdist=file("b.gz"))), Platform())
    data = tomllib.loads(recipe.text("https://user:pw@index/simple"))
    assert [package["index"] for package in data["packages"]] == ["https://user:pw@index/simple"] * 2
    assert recipe.wanted == {"a": "1.0", "b": "2"}
    assert [package.name for package in recipe.to_build] == ["b"]


WHEELS = {
    "exactly that release": ("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", "2.8.3"),
    "with a local version": ("flash_attn-2.8.3+cu13torch2.11-cp312-cp312-linux_x86_64.whl", "2.8.3+cu13torch2.11"),
    "with a build tag": ("flash_attn-2.8.3-1-cp312-cp312-manylinux_2_34_x86_64.whl", "2.8.3"),
    "another release": ("flash_attn-2.8.2-cp312-cp312-linux_x86_64.whl", None),
    "another python": ("flash_attn-2.8.3-cp310-cp310-linux_x86_64.whl", None),
    "a newer glibc": ("flash_attn-2.8.3-cp312-cp312-manylinux_2_39_x86_64.whl", None),
    "another package": ("flash_attn_3-2.8.3-cp312-cp312-linux_x86_64.whl", None),
    "no wheel's name": ("flash_attn.whl", None),
}


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_of_the_user(tmp_path: Path, name: str) -> None:
    filename, version = WHEELS[name]
    (tmp_path / filename).write_bytes(b"a wheel")
    text = lock(entry("flash-attn", "2.8.3", sdist=file("f.tar.gz", 5)), entry("torch", "2.0", file("t.whl")))
    recipe = read_recipe(text, Platform(), [tmp_path])
    assert [str(wheel.version) for wheel in recipe.local] == ([version] if version else [])
    if version:
        assert recipe.to_build == ()
        package = tomllib.loads(recipe.text("https://index"))["packages"][0]
        assert package["version"] == version
        assert package["wheels"][0]["path"] == str(tmp_path / filename)
        assert "index" not in package


def test_a_release_that_has_a_wheel_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "torch-2.0-py3-none-any.whl").touch()
    assert read_recipe(lock(entry("torch", "2.0", file("t.whl"))), Platform(), [tmp_path]).local == ()


def test_folders_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.setenv("VERL_MATRIX_WHEELS", f"{two}:")
    assert wheel_folders([one]) == (one, two)
    monkeypatch.setenv("VERL_MATRIX_WHEELS", str(tmp_path / "three"))
    with pytest.raises(UsageError, match=r"three is not a folder of wheels"):
        wheel_folders()


def test_an_empty_lock_is_refused() -> None:
    with pytest.raises(ProvisionError, match="no package"):
        read_recipe(HEAD, Platform())


REFUSALS = {
    ("antlr4-python3-runtime", "4.9.3", "3.12"): "",
    ("antlr4-python3-runtime", "4.13", "3.12"): "no build of it is named in builds.toml",
    ("pyext", "0.7", "3.10"): "",
    ("pyext", "0.7", "3.11"): "builds on Python <3.11 only, not 3.11",
    ("flash-attn", "2.8.3", "3.12"): "not built here: it compiles CUDA kernels",
    ("unheard-of", "1", "3.12"): "no build of it is named",
}


@pytest.mark.parametrize("asked", REFUSALS, ids=str)
def test_what_may_be_built(asked: tuple[str, str, str]) -> None:
    name, version, python = asked
    found, words = load_builds().refusal(locked(name, version), python), REFUSALS[asked]
    assert (words in found) if words else (found == "")


def test_every_package_in_the_way_is_named() -> None:
    with pytest.raises(ProvisionError, match=r"2 of the cell's packages") as caught:
        load_builds().check([locked("flash-attn"), locked("pyext", "0.7"), locked("pylatexenc", "2.10")], "3.12")
    assert caught.value.packages == ("flash-attn", "pyext")
    assert not caught.value.wheel_missing, "pyext builds on no such Python, whoever tries"
    assert "VERL_MATRIX_WHEELS" in str(caught.value)


@pytest.mark.parametrize("names", [("flash-attn",), ("flash-attn", "unheard-of")])
def test_what_somebody_has_to_build_first_is_no_fault_of_the_cell(names: tuple[str, ...]) -> None:
    with pytest.raises(ProvisionError) as caught:
        load_builds().check([locked(name) for name in names], "3.12")
    assert caught.value.wheel_missing


def test_the_build_requirements_are_pinned_with_their_digests() -> None:
    table = load_builds()
    assert table.constraints([]) == ""
    lines = table.constraints([locked("antlr4-python3-runtime", "4.9.3"), locked("pylatexenc", "2.10")]).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("setuptools==") and "--hash=sha256:" in lines[0]  # noqa: PT018


def test_what_the_resolver_knows_of_sdists_may_be_built_or_is_refused_with_a_reason() -> None:
    named = {build.name for build in load_builds().builds}
    assert {item.name for item in load_sdists().sdists} <= named


GOOD = """schema = 1
[[backend]]
name = "setuptools"
version = "80.9.0"
sha256 = "%s"
source = "x"
checked = 2026-11-30
[[build]]
name = "a"
version = "1"
allowed = true
python = ">=3.10"
backends = ["setuptools"]
why = "x"
checked = 2026-11-30
""" % ("0" * 64)  # fmt: skip

FAULTS = {
    "sha256": ("0" * 64, "0" * 63, r"backend\[0\]\.sha256: is 64"),
    "python": ('">=3.10"', '"three"', r"build\[0\]\.python: `three` is not a specifier"),
    "backend": ('backends = ["setuptools"]', 'backends = ["flit"]', r"build\[0\]\.backends: `flit` has no"),
    "version": ('version = "1"', 'version = "one"', r"build\[0\]\.version"),
    "unknown": ('why = "x"', 'why = "x"\nwhen = "y"', r"build\[0\]\.when: unknown field"),
    "no reason": ('why = "x"\n', "", r"build\[0\]\.why: is missing"),
    "unknown table": ("[[build]]", "[[builds]]", r"builds: unknown field"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_data_file_that_is_wrong(tmp_path: Path, name: str) -> None:
    old, new, words = FAULTS[name]
    path = tmp_path / "builds.toml"
    path.write_text(GOOD)
    assert isinstance(load_builds(path), BuildTable)
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=words):
        load_builds(path)
