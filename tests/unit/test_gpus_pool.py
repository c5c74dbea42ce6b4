"""The pool: GPUs are granted to one at a time, across threads and processes, whole and in order, and come back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from matrix.errors import BusyError, ToolError
from matrix.gpus.need import Need
from matrix.gpus.pool import Pool, StoppedError
from tests.unit.gpu_fakes import H200, T4, inventory, many

OTHER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from matrix.gpus.need import Need
from matrix.gpus.pool import Pool
from tests.unit.gpu_fakes import inventory, many
with Pool(inventory=inventory(*many({have})), folder=Path({folder!r})).grant(Need(gpus={count})) as grant:
    print(grant.visible, flush=True)
    time.sleep(60)
"""
ROOT = str(Path(__file__).parents[2])


def _pool(folder: Path, count: int = 2) -> Pool:
    return Pool(inventory=inventory(*many(count)), folder=folder / "leases")


def test_a_grant_is_exclusive_and_comes_back(tmp_path: Path) -> None:
    first, second = _pool(tmp_path), _pool(tmp_path)
    assert first.granted() == frozenset()
    with first.grant(Need()) as grant:
        assert grant.visible == "0"
        assert first.granted() == second.granted() == {0}
        with second.grant(Need()) as other:
            assert other.visible == "1"
            with (
                pytest.raises(BusyError, match="1 of 2 GPUs did not come free in 0 s"),
                _pool(tmp_path).grant(Need(), patience_s=0.3),
            ):
                pass
    assert first.granted() == frozenset()
    with first.grant(Need(gpus=2)) as grant:
        assert grant.visible == "0,1"


def test_what_is_not_enough_is_not_granted(tmp_path: Path) -> None:
    pool = Pool(inventory=inventory(T4, H200), folder=tmp_path)
    with pool.grant(Need(memory_gib=40)) as grant:
        assert [gpu.name for gpu in grant.gpus] == ["NVIDIA H200"]
    with (
        pytest.raises(ToolError, match="needs 2 GPUs, each of which needs 40 GiB"),
        pool.grant(Need(gpus=2, memory_gib=40)),
    ):
        pass


def test_a_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    pool = _pool(tmp_path)
    code = OTHER.format(root=ROOT, have=2, folder=str(tmp_path / "leases"), count=2)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "0,1\n"
    assert pool.granted() == {0, 1}
    with pytest.raises(BusyError), pool.grant(Need(), patience_s=0.3):
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    with pool.grant(Need(gpus=2), patience_s=20) as grant:
        assert grant.visible == "0,1"


def test_who_asked_first_is_served_first_also_where_it_wants_more(tmp_path: Path) -> None:
    pool, order = _pool(tmp_path), []

    waited: list[str] = []

    def visit(name: str, count: int) -> None:
        with pool.grant(Need(gpus=count), waits=lambda: waited.append(name)):
            order.append(name)

    with pool.grant(Need()):
        threads = []
        for name, count in (("wants two", 2), ("wants one", 1)):
            threads.append(threading.Thread(target=visit, args=(name, count)))
            threads[-1].start()
            while len(pool._queue) < len(threads):
                time.sleep(0.01)
        assert order == []
    for thread in threads:
        thread.join(20)
    assert order == ["wants two", "wants one"]
    assert sorted(waited) == ["wants one", "wants two"]


def test_many_who_want_all_of_it_never_wait_for_each_other(tmp_path: Path) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def visit(count: int) -> None:
        # A pool of its own: as if each were another process.
        with _pool(tmp_path, 3).grant(Need(gpus=count), patience_s=60):
            with lock:
                running[0] += count
                most[0] = max(most[0], running[0])
            time.sleep(0.01)
            with lock:
                running[0] -= count

    threads = [threading.Thread(target=visit, args=(1 + number % 3,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 3


def test_a_pool_that_is_stopped_grants_no_more(tmp_path: Path) -> None:
    pool, raised = _pool(tmp_path, 1), []

    def visit() -> None:
        try:
            with pool.grant(Need()):
                raised.append("granted")
        except StoppedError:
            raised.append("stopped")

    with pool.grant(Need()):
        thread = threading.Thread(target=visit)
        thread.start()
        while not pool._queue:
            time.sleep(0.01)
        pool.stop()
        thread.join(20)
    assert raised == ["stopped"]
    assert pool.stopped
    with pytest.raises(StoppedError), pool.grant(Need()):
        pass


def test_a_second_grant_of_one_thread_is_refused(tmp_path: Path) -> None:
    pool = _pool(tmp_path)
    with pool.grant(Need()), pytest.raises(AssertionError, match="may wait forever"), pool.grant(Need()):
        pass


def _fails(error: OSError) -> object:
    def call(*words: object) -> None:
        raise error

    return call


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.gpus.pool.fcntl.flock", _fails(OSError(37, "No locks available")))
    with pytest.raises(ToolError, match="No locks available"), _pool(tmp_path).grant(Need()):
        pass


@pytest.mark.parametrize("what", ["a file in its place", "no folder for it", "a link for a lock"])
def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "leases"
    if what == "a file in its place":
        folder.touch()
    elif what == "no folder for it":
        folder = tmp_path / "gone" / "leases"
    else:
        folder.mkdir()
        pool = Pool(inventory=inventory(H200), folder=folder)
        pool._path(pool.inventory.gpus[0]).symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ToolError, match="GPUs cannot be granted"),
        Pool(inventory=inventory(H200), folder=folder).grant(Need()),
    ):
        pass
