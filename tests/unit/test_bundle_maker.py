"""What is carried and what is not, and that the bundle says so."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from matrix.bundle import tokenizer, toolwheel
from matrix.bundle.freeze import Freeze
from matrix.bundle.maker import Order
from matrix.bundle.wheelhouse import fits_release, local_wheel
from matrix.cell import Axis, Platform
from matrix.errors import (
    CorruptFileError,
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    NothingRanError,
    ProvisionError,
    ToolError,
    UsageError,
)
from matrix.provision.builds import load_builds
from matrix.provision.recipe import LocalWheel
from matrix.resolve.lock import parse_lock
from tests.unit.bundle_stack import PLATFORM, PYTHON, Stack, cell, lock, stack, wheel


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return stack(tmp_path, monkeypatch)


def _data(made: Stack) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((made.out / "bundle.json").read_text())
    return data


def test_every_file_and_part_is_listed_with_its_digest(made: Stack) -> None:
    bundle = made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))), part_size=1 << 16)
    data = _data(made)
    assert data == bundle.to_json()
    stream = b"".join((made.out / part.name).read_bytes() for part in bundle.parts)
    assert len(stream) == bundle.size == data["size"]
    for entry in bundle.files.values():
        assert hashlib.sha256(stream[entry.offset : entry.offset + entry.size]).hexdigest() == entry.sha256
    whole = made.out / "all"
    whole.write_bytes(stream)
    with tarfile.open(whole) as tar:
        assert set(tar.getnames()) == set(bundle.files)
    assert sorted(path.name for path in made.out.iterdir()) == ["all", "bundle.json", "part.000", "unbundle.py"]


def test_what_the_host_has_as_locked_stays_behind(made: Stack) -> None:
    entries = [made.shelf.add(name, "1.0") for name in ("ray", "same", "other", "out")]
    have = Freeze(versions={"same": "1.0+cu130", "other": "2.0", "out": "1.0", "unasked": "1"})
    bundle = made.make((cell("1.0"), lock(*entries)), have=have, leave_out=("out",))
    (found,) = bundle.cells
    carried = {Path(path).name.split("-")[0] for path in found.wheels}
    assert carried == {"ray", "other", "pytest", "pluggy"}
    assert (found.host, found.left_out) == ({"same": "1.0"}, {"out": "1.0"})
    assert found.needs == {"pytest": "9.0", "pluggy": "1.6"}
    assert found.notes == ("the host has other 2.0, the lock 1.0: carried",)
    assert found.wanted == {"ray": "1.0", "same": "1.0", "other": "1.0", **found.needs}
    assert _data(made)["asked"] == {"have": dict(sorted(have.versions.items())), "leave_out": ["out"]}


def test_wheels_that_cells_share_are_carried_once_and_the_first_cell_first(made: Stack) -> None:
    shared, one, two = (made.shelf.add(*words) for words in (("shared", "1.0"), ("ray", "1.0"), ("ray", "1.1")))
    bundle = made.make((cell("1.1"), lock(shared, two)), (cell("1.0"), lock(shared, one)))
    names = [path for path in bundle.files if "shared" in path or "ray" in path]
    assert names == [f"wheels/{name}-py3-none-any.whl" for name in ("ray-1.1", "shared-1.0", "ray-1.0")]
    assert all(f"wheels/{name}-1.0-py3-none-any.whl" in item.wheels for item in bundle.cells for name in ("shared",))
    assert len({item.lock_file for item in bundle.cells}) == 2


def test_a_cell_that_has_pytest_gets_none(made: Stack) -> None:
    own = made.shelf.add("pytest", "7.0")
    bundle = made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), own)))
    assert bundle.cells[0].needs == {}
    assert bundle.cells[0].wanted["pytest"] == "7.0"


def test_the_tool_takes_the_cells_versions_where_it_may(made: Stack) -> None:
    ray = made.shelf.add("ray", "1.0")
    made.make((cell("1.0"), lock(ray, made.shelf.add("helper", "1.0"))))
    assert made.answers.problems[0].constraints == ("helper==1.0", "ray==1.0")
    made.answers.problems.clear()
    bundle = made.make((cell("1.0"), lock(ray, made.shelf.add("helper", "0.5"))))
    assert [problem.constraints for problem in made.answers.problems[:2]] == [("helper==0.5", "ray==1.0"), ()]
    assert "wheels/helper-1.0-py3-none-any.whl" in bundle.tool
    assert "wheels/helper-0.5-py3-none-any.whl" in bundle.cells[0].wheels


def test_no_cell_at_all_is_the_tool_alone(made: Stack) -> None:
    bundle = made.make(platform=replace(PLATFORM, glibc="2.17"))
    assert bundle.cells == ()
    assert {Path(path).name.split("-")[0] for path in bundle.files} == {"verl_matrix", "uv", "helper"}
    assert bundle.target.glibc == "2.17"


def test_the_newest_glibc_of_the_cells_is_the_bundles(made: Stack) -> None:
    entry = made.shelf.add("ray", "1.0")
    cells = [cell("1.0", platform=replace(PLATFORM, glibc=text)) for text in ("2.9", "2.35", "2.28")]
    bundle = made.make(*((item, lock(entry)) for item in cells))
    assert bundle.target.glibc == "2.35"


def test_a_wheel_of_the_users_own_takes_the_place_of_a_build(made: Stack, tmp_path: Path) -> None:
    path = tmp_path / "flash_attn-2.8+mine-py3-none-any.whl"
    path.write_bytes(wheel("flash_attn", "2.8+mine"))
    own = local_wheel("Flash_Attn", path, PLATFORM)
    sdist = (
        'name = "flash-attn"\nversion = "2.8"\nsdist = { url = "http://index/x.tar.gz", hashes = { sha256 = "0" } }\n'
    )
    bundle = made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), sdist)), builds={own.name: own})
    (found,) = bundle.cells
    assert f"wheels/{path.name}" in found.wheels
    assert found.identity == f"{found.lock}+flash-attn:{own.sha256}"
    assert found.wanted["flash-attn"] == "2.8+mine"
    assert found.built == ()
    assert found.notes == (f"flash-attn 2.8+mine from a wheel given by the user: {path.name}",)


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [("2.8", "2.8", True), ("2.8+a", "2.8.0", True), ("2.8", "2.8+a", False), ("2.9", "2.8", False)],
)
def test_a_wheel_is_of_its_release(version: str, wanted: str, fits: bool) -> None:
    own = LocalWheel(name="x", version=Version(version), path=Path("x"), sha256="")
    assert fits_release(own, Version(wanted)) is fits


@pytest.mark.parametrize(
    ("name", "file", "what"),
    [
        ("a", "none", "There is no wheel"),
        ("a", "a.whl", "is not the name of a wheel"),
        ("a", "b-1.0-py3-none-any.whl", "is a wheel of b, not of a"),
        ("a", "a-1.0-cp27-none-any.whl", "does not fit Python"),
    ],
)
def test_a_wheel_that_is_no_build_is_refused(tmp_path: Path, name: str, file: str, what: str) -> None:
    path = tmp_path / file
    if file != "none":
        path.write_bytes(b"x")
    with pytest.raises(ToolError, match=what):
        local_wheel(name, path, PLATFORM)


OWN = LocalWheel(name="ray", version=Version("9.9"), path=Path("ray-9.9-py3-none-any.whl"), sha256="0")


@pytest.mark.parametrize(
    ("more", "error", "what"),
    [
        ({"leave_out": ("nothing",)}, NothingRanError, "--leave-out names nothing, which no cell's lock holds"),
        ({"builds": {"nothing": OWN}}, NothingRanError, "--build names nothing"),
        ({"builds": {"ray": OWN}}, UsageError, r"is ray 9\.9; the locks want 1\.0"),
        ({"models": ("7b",)}, UsageError, "There is no shape `7b`"),
    ],
)
def test_words_that_fit_no_lock_are_refused(
    made: Stack, more: dict[str, object], error: type[MatrixError], what: str
) -> None:
    with pytest.raises(error, match=what):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))), **more)
    assert not (made.out / "bundle.json").exists()
    assert not (made.out / ".making").exists()


@pytest.mark.parametrize("more", [{"leave_out": ("a",)}, {"have": Freeze(versions={"a": "1"})}, {"builds": {"a": OWN}}])
def test_without_cells_nothing_can_be_left_out(made: Stack, more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="none is bundled"):
        made.make(**more)


def test_a_host_that_cannot_run_the_tool_gets_no_bundle(made: Stack) -> None:
    old = cell("1.0", platform=Platform(python="3.10"))
    with pytest.raises(UsageError, match=r"for Python 3\.10; this tool, which it carries, needs 3\.11"):
        made.make((old, lock(made.shelf.add("ray", "1.0"))))


def test_two_pythons_are_two_bundles() -> None:
    cells = tuple((cell("1.0", platform=Platform(python=python)), "") for python in ("3.11", "3.12"))
    with pytest.raises(UsageError, match=r"Python 3\.11 on x86_64, Python 3\.12 on x86_64"):
        _ = Order(cells=cells).target


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda made: made.answers.entries.pop("uv"), ToolError, "uv is not among"),
        (lambda made: made.shelf.files.clear(), IndexUnreachableError, "could not be read"),
    ],
)
def test_what_cannot_be_had_is_told(
    made: Stack, change: Callable[[Stack], object], error: type[MatrixError], what: str
) -> None:
    text = lock(made.shelf.add("ray", "1.0"))
    made.answers.entries = dict(made.answers.entries)
    change(made)
    with pytest.raises(error, match=what):
        made.make((cell("1.0"), text))


def test_a_pytest_that_does_not_fit_is_the_cells_fault(made: Stack) -> None:
    with pytest.raises(ProvisionError, match="No pytest fits"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), made.shelf.add("pluggy", "0.1"))))


def test_a_pytest_that_brings_more_is_refused(made: Stack) -> None:
    made.answers.entries = {**made.answers.entries, "pluggy": made.shelf.add("stranger", "1.0")}
    with pytest.raises(ProvisionError, match="would bring stranger into the cell"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))))


def test_the_tool_must_be_had(made: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(made.maker), "_solved", lambda *_: None)
    with pytest.raises(ProvisionError, match="What this tool needs cannot be had"):
        made.make()


def test_an_empty_lock_is_no_cell(made: Stack) -> None:
    with pytest.raises(ProvisionError, match="holds no package"):
        made.make((cell("1.0"), lock()))


def test_two_wheels_of_one_name_that_differ_are_refused(made: Stack) -> None:
    one = lock(made.shelf.add("ray", "1.0"))
    first = made.shelf.files["http://index/ray-1.0-py3-none-any.whl"]
    made.shelf.files["http://other/ray-1.0-py3-none-any.whl"] = body = wheel("ray", "1.0", {"ray.py": "other = 1\n"})
    other = one.replace(hashlib.sha256(first).hexdigest(), hashlib.sha256(body).hexdigest())
    other = other.replace("http://index", "http://other").replace(f"size = {len(first)}", f"size = {len(body)}")
    with pytest.raises(ProvisionError, match="Two wheels have the name"):
        made.make((cell("1.0"), one), (cell("1.0", Axis.VERL), other))


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    made: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matrix.bundle.maker.free_bytes", lambda _: 10)
    with pytest.raises(NoSpaceError, match="The bundle takes"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))))
    assert list(made.out.iterdir()) == []


def test_a_bundle_that_was_stopped_goes_on_with_what_was_fetched(made: Stack) -> None:
    text = lock(made.shelf.add("ray", "1.0"), made.shelf.add("late", "1.0"))
    late = made.shelf.files.pop("http://index/late-1.0-py3-none-any.whl")
    with pytest.raises(IndexUnreachableError):
        made.make((cell("1.0"), text))
    made.shelf.files["http://index/late-1.0-py3-none-any.whl"] = late
    kept = {path.name for path in made.maker.wheelhouse.root.rglob("*.whl")}
    assert kept >= {"helper-1.0-py3-none-any.whl", "uv-0.9.0-py3-none-any.whl"}
    made.shelf.asked.clear()
    made.make((cell("1.0"), text))
    assert not kept & {url.rpartition("/")[2] for url in made.shelf.asked}
    made.shelf.asked.clear()
    made.make((cell("1.0"), text))
    assert made.shelf.asked == []


# ---- the wheelhouse ----


def test_a_file_that_is_not_what_the_lock_says_is_fetched_once_more_and_refused(made: Stack) -> None:
    text = lock(made.shelf.add("ray", "1.0"))
    made.shelf.files["http://index/ray-1.0-py3-none-any.whl"] = b"another"
    with pytest.raises(CorruptFileError, match="has not the SHA-256 that the lock states"):
        made.make((cell("1.0"), text))
    assert made.shelf.asked.count("http://index/ray-1.0-py3-none-any.whl") == 2
    assert not list(made.maker.wheelhouse.root.rglob("*ray*.whl"))


def test_the_best_wheel_for_the_platform_is_taken(made: Stack) -> None:
    one = made.shelf.add("ray", "1.0")
    file = one.split("wheels = [")[1].rstrip("]\n")
    body = made.shelf.files["http://index/ray-1.0-py3-none-any.whl"]
    tag = f"cp{PYTHON.replace('.', '')}"
    better = f"ray-1.0-{tag}-{tag}-manylinux_2_17_x86_64.whl"
    made.shelf.files[f"http://index/{better}"] = body
    entry = one.replace("[{", "[" + file.replace("ray-1.0-py3-none-any.whl", better) + ", {")
    (package,) = parse_lock(lock(entry)).packages
    import tomllib

    (data,) = tomllib.loads(lock(entry))["packages"]
    assert made.maker.wheelhouse.wheel(package, data, PLATFORM).path.name == better
    none = {**data, "wheels": [{**data["wheels"][0], "url": "http://index/ray-1.0-cp27-none-any.whl"}]}
    with pytest.raises(ProvisionError, match=r"No wheel in the lock of ray 1\.0 fits"):
        made.maker.wheelhouse.wheel(package, none, PLATFORM)


SDIST = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "pylatexenc-2.10.dist-info"
    with zipfile.ZipFile(folder + "/pylatexenc-2.10-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pylatexenc.py", "")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: pylatexenc\\nVersion: 2.10\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return "pylatexenc-2.10-py3-none-any.whl"
"""


def _sdist(made: Stack, tmp: Path, backend: str = SDIST) -> str:
    folder = tmp / "pylatexenc-2.10"
    folder.mkdir(exist_ok=True)
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(project)
    (folder / "backend.py").write_text(backend)
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: pylatexenc\nVersion: 2.10\n")
    path = tmp / "pylatexenc-2.10.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    body = path.read_bytes()
    made.shelf.files["http://index/pylatexenc-2.10.tar.gz"] = body
    digest = hashlib.sha256(body).hexdigest()
    file = f'{{ url = "http://index/pylatexenc-2.10.tar.gz", hashes = {{ sha256 = "{digest}" }} }}'
    return f'name = "pylatexenc"\nversion = "2.10"\nsdist = {file}\n'


def test_a_named_build_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stack(tmp_path, monkeypatch, builds=load_builds())
    text = lock(made.shelf.add("ray", "1.0"), _sdist(made, tmp_path))
    bundle = made.make((cell("1.0"), text))
    assert bundle.cells[0].built == ("pylatexenc==2.10",)
    assert "wheels/pylatexenc-2.10-py3-none-any.whl" in bundle.cells[0].wheels
    assert made.said.count("building pylatexenc 2.10") == 1
    made.make((cell("1.0"), text))
    assert made.said.count("building pylatexenc 2.10") == 1
    (built,) = made.maker.wheelhouse.root.glob("built/*/*/*.whl")
    built.write_bytes(b"damaged")
    made.make((cell("1.0"), text))
    assert made.said.count("building pylatexenc 2.10") == 2


def test_a_build_that_fails_or_is_not_named_is_the_cells_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stack(tmp_path, monkeypatch, builds=load_builds(), offline=True)
    broken = _sdist(made, tmp_path, "def build_wheel(*_):\n    raise SystemExit('no compiler')\n")
    with pytest.raises(ProvisionError, match="could not be built") as caught:
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), broken)))
    assert "no compiler" in caught.value.why
    made = stack(tmp_path, monkeypatch)
    with pytest.raises(ProvisionError, match="no build of it is named"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"), broken)))


def test_a_wheel_that_cannot_be_kept_says_why(made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.maker.wheelhouse.root.parent.mkdir(exist_ok=True)
    made.maker.wheelhouse.root.write_text("a file where the folder should be")
    with pytest.raises(ToolError, match="A wheel cannot be kept"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))))
    made.maker.wheelhouse.root.unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(NoSpaceError, match="No room is left for wheels"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))))


# ---- the tool's own wheel, and the tokenizer ----


def test_the_tool_is_a_wheel_with_the_probes_in_it(tmp_path: Path) -> None:
    one = toolwheel.build_tool_wheel()
    assert one == toolwheel.build_tool_wheel(), "the same files make the same bytes"
    path = tmp_path / toolwheel.FILENAME
    path.write_bytes(one)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith("/RECORD"))
        listed = {line.partition(",")[0] for line in archive.read(record).decode().splitlines()}
    assert listed == set(names)
    for wanted in ("matrix/__main__.py", "matrix/cells.toml", "matrix/compat/conftest.py", "matrix/compat/kit/cell.py",
                   "reports/front.py", "bench/__init__.py"):  # fmt: skip
        assert wanted in names, wanted
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "reports/out"))]
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import matrix.bundle.toolwheel as t; "
    program += "print(len(t.build_tool_wheel()), t.requirements()[0], sep='\\n')"
    ask = [sys.executable, "-I", "-c", program, str(tmp_path / "site")]
    said = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert (int(said[0]), said[1]) == (len(one), toolwheel.requirements()[0]), "an installed tool packs itself as well"


def test_the_tokenizer_is_built_by_the_workloads_own_step(
    made: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = tmp_path / "probes" / "workload"
    probes.mkdir(parents=True)
    (probes / "__init__.py").write_text("")
    (probes / "shapes.py").write_text("SHAPES = {'tiny': 1, 'big': 2}\n")
    build = "PACKAGE = 'ranks==1.0'\nif __name__ == '__main__':\n    import pathlib, sys\n"
    build += "    out = pathlib.Path(sys.argv[-1])\n    out.mkdir()\n"
    build += "    (out / 'tokenizer.json').write_text(pathlib.Path(sys.argv[3]).name)\n"
    (probes / "build.py").write_text(build)
    monkeypatch.setattr("matrix.bundle.maker.probes_folder", lambda: probes.parent)
    made.answers.entries = {**made.answers.entries, "ranks": made.shelf.add("ranks", "1.0")}
    bundle = made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))), models=("tiny",))
    assert bundle.models == ("tiny",)
    assert "workload/tokenizer/tokenizer.json" in bundle.files
    assert not [path for path in bundle.files if "ranks" in path]
    with pytest.raises(UsageError, match="There is no shape `huge`") as caught:
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))), models=("huge",))
    assert caught.value.then == "Shapes: tiny, big."
    monkeypatch.setattr(type(made.answers), "solve", lambda self, problem: None)
    with pytest.raises(ProvisionError):
        made.maker._tokenizer(("tiny",), PLATFORM, tmp_path)
    shutil.rmtree(probes)
    with pytest.raises(ToolError, match="build step failed"):
        tokenizer.ranks_package(probes.parent)


def test_a_folder_that_cannot_be_made_is_told(made: Stack, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    made.out = tmp_path / "file"
    with pytest.raises(UsageError, match="cannot be written to"):
        made.make((cell("1.0"), lock(made.shelf.add("ray", "1.0"))))
