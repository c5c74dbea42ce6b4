"""Provisioning beside others: who uses an environment, who removes it, who is killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from matrix.errors import (
    BusyError,
    MatrixError,
    ToolError,
)
from matrix.provision.environment import read_manifest
from tests.unit import provision_stack as stack
from tests.unit.local_index import LocalIndex


@pytest.fixture
def made(tmp_path: Path) -> LocalIndex:
    return stack.index(tmp_path / "index")


def test_release_removes_unless_it_is_kept(tmp_path: Path, made: LocalIndex) -> None:
    text = stack.lock(made, ray="1.0")
    passing, keeping = (stack.provisioner(tmp_path, made, keep=keep) for keep in (False, True))
    environment = passing.provision(stack.cell(), text)
    passing.release(environment)
    assert not environment.python.exists()
    assert stack.shelved(tmp_path) == []
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
    assert stack.shelved(tmp_path) == []


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
    assert stack.shelved(tmp_path) == [stack.cell().name], "nothing is removed under a uv that still writes"
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
    assert stack.shelved(tmp_path) == []


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
    assert stack.shelved(tmp_path) == []
