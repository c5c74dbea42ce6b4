"""Provisioning that cannot be: locks that lie, builds that fail, no room, no Python, no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from matrix.cell import Platform
from matrix.errors import (
    CorruptFileError,
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    ProvisionError,
    ToolError,
)
from matrix.provision.builds import Build, BuildTable
from tests.unit import provision_stack as stack
from tests.unit.local_index import LocalIndex


@pytest.fixture
def made(tmp_path: Path) -> LocalIndex:
    return stack.index(tmp_path / "index")


LIES: Mapping[str, tuple[Callable[[LocalIndex], str], type[MatrixError], str]] = {
    "the wheel has another digest": (
        lambda made: stack.lock(made, {"ray": "0" * 64}, ray="1.0"), CorruptFileError, "has not the digest"
    ),
    "the file is gone": (
        lambda made: stack.lock(made, ray="1.0").replace("ray-1.0-py3", "ray-1.0-1-py3"), MatrixError, "uv"
    ),
    "a wheel of another platform": (
        lambda made: stack.lock(made, ray="1.0").replace("py3-none-any", "cp27-cp27m-win32"), ToolError,
        "does not fit this machine",
    ),
    "nothing in it": (lambda made: stack.lock(made), ProvisionError, "holds no package"),
    "no lock at all": (lambda made: "x\n[[packages]]\ny", ToolError, "unexpected form"),
    "no wheel and no named build": (
        lambda made: stack.lock(made, ray="1.0").replace("wheels = [", "sdist = [").replace(".whl", ".tar.gz"),
        ProvisionError, "no build of it is named in builds.toml",
    ),
    "another package's file": (
        lambda made: stack.lock(made, shared="1.0").replace('"shared"', '"ray"'), ProvisionError,
        "is not what the lock says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lock_that_cannot_be_installed(tmp_path: Path, made: LocalIndex, name: str) -> None:
    text, error, words = LIES[name]
    with pytest.raises(error, match=words):
        stack.provisioner(tmp_path, made).provision(stack.cell(), text(made))
    assert not (tmp_path / "home" / "cache" / "environments").exists() or stack.shelved(tmp_path) == []


def test_a_wheel_that_holds_another_version_is_named(tmp_path: Path, made: LocalIndex) -> None:
    made.wheel("liar", "1.0")
    path = made.folder / "liar" / "liar-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes().replace(b"Version: 1.0", b"Version: 2.0"))
    # The zip's checksum no longer holds either; so it is written anew, with a digest that holds.
    import zipfile

    with zipfile.ZipFile(path, "w") as wheel:
        info = "liar-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: liar\nVersion: 2.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(ProvisionError, match="liar") as caught:
        stack.provisioner(tmp_path, made).provision(stack.cell(), stack.lock(made, ray="1.0", liar="1.0"))
    assert "liar is 2.0, the lock says 1.0" in str(caught.value) or "is not what the lock says" in str(caught.value)


def test_an_environment_that_is_not_what_the_lock_says(tmp_path: Path, made: LocalIndex) -> None:
    uv = stack.fake_uv(
        tmp_path / "bin",
        """
        case "$*" in *"pip sync"*dry-run*) ;; *"pip sync"*) exit 0 ;; esac
        """,
    )
    with pytest.raises(ProvisionError, match=r"ray 1\.0 is missing; shared 1\.0 is missing") as caught:
        stack.provisioner(tmp_path, made, uv=uv).provision(stack.cell(), stack.lock(made, ray="1.0", shared="1.0"))
    assert caught.value.packages == ("ray", "shared")
    assert stack.shelved(tmp_path) == []


def test_a_named_build_is_built_and_told(tmp_path: Path, made: LocalIndex) -> None:
    stack.source_only(made, "sourced", "1.0")
    entry = Build(name="sourced", version=None, allowed=True, python=SpecifierSet(), backends=(), why="no wheel")
    builds = BuildTable(builds=(entry,), backends={})
    text = stack.lock(made, ray="1.0", sourced="1.0")
    environment = stack.provisioner(tmp_path, made, builds=builds).provision(stack.cell(), text)
    assert environment.built == ("sourced==1.0",)
    assert environment.installed == {"ray": "1.0", "sourced": "1.0"}


def test_a_build_that_fails_is_the_cells_fault(tmp_path: Path, made: LocalIndex) -> None:
    stack.source_only(made, "sourced", "1.0", "raise SystemExit('no compiler here')")
    entry = Build(name="sourced", version=None, allowed=True, python=SpecifierSet(), backends=(), why="no wheel")
    builds = BuildTable(builds=(entry,), backends={})
    with pytest.raises(ProvisionError, match="could not be built") as caught:
        stack.provisioner(tmp_path, made, builds=builds).provision(stack.cell(), stack.lock(made, sourced="1.0"))
    assert "no compiler here" in str(caught.value)
    assert stack.shelved(tmp_path) == []


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made, free=lambda _: 5_000_000, uv_cache=tmp_path / "uv")
    with pytest.raises(NoSpaceError, match=r"takes about \d+ MB more in .*, where 5 MB are free") as caught:
        provisioner.provision(stack.cell(), stack.lock(made, ray="1.0"))
    assert "env remove" in str(caught.value)
    assert stack.shelved(tmp_path) == []
    assert list((tmp_path / "uv").glob("archive-v0/*")) == []


def test_a_disk_that_runs_full_leaves_nothing_half_made(tmp_path: Path, made: LocalIndex) -> None:
    uv = stack.fake_uv(
        tmp_path / "bin",
        """
        case "$*" in *dry-run*) ;; *"pip sync"*) echo "error: No space left on device (os error 28)" >&2; exit 2 ;; esac
        """,
    )
    with pytest.raises(NoSpaceError, match="ran full"):
        stack.provisioner(tmp_path, made, uv=uv).provision(stack.cell(), stack.lock(made, ray="1.0"))
    assert stack.shelved(tmp_path) == []


def test_no_python_of_that_version(tmp_path: Path, made: LocalIndex) -> None:
    asked = stack.cell(platform=Platform(python="3.99"))
    provisioner = stack.provisioner(tmp_path, made, find_python=None, offline=True)
    with pytest.raises(ToolError, match=r"There is no CPython 3\.99"):
        provisioner.provision(asked, stack.lock(made, ray="1.0"))
    assert stack.shelved(tmp_path) == []


def test_another_machine(tmp_path: Path, made: LocalIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ToolError, match="for x86_64, and this machine is riscv64"):
        stack.provisioner(tmp_path, made).provision(stack.cell(), stack.lock(made, ray="1.0"))


def test_offline_takes_what_the_cache_has(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0").replace("file://", "http://127.0.0.1:9/")
    with pytest.raises(IndexUnreachableError, match="not in uv's cache"):
        stack.provisioner(tmp_path, made, offline=True).provision(stack.cell(), text)
    local = stack.lock(made, ray="1.0")
    stack.provisioner(tmp_path, made).provision(stack.cell(), local)
    other = stack.provisioner(tmp_path, made, offline=True)
    assert not other.provision(stack.cell("1.1"), stack.lock(made, ray="1.1")).reused
