"""The light parts of the PPO run on a CPU: rows, reward, patches after import, processes below; nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

COMPAT = Path(__file__).resolve().parents[1] / "compat"


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMPAT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0.0), ("abc", 1.0), ("a\n", 0.5), ("~ ", 1.0), ("\ufffd\ufffdx\x7f", 0.25), ("é", 0.0)],
)
def test_reward_is_the_share_of_printable_ascii(text: str, expected: float) -> None:
    from ppo.reward import compute_score

    assert compute_score("openai/gsm8k", text, "7", extra_info={"index": 0}, more=1) == expected


def test_rows_depend_on_the_workload_alone() -> None:
    from ppo.workload import Workload, row

    rows = [row(number, Workload()) for number in range(8)]
    assert rows == [row(number, Workload()) for number in range(8)]
    assert rows != [row(number, Workload(seed=18)) for number in range(8)]
    for number, entry in enumerate(rows):
        words = entry["prompt"][0]["content"].split()
        assert int(words[2]) + int(words[6].rstrip(".")) == int(entry["reward_model"]["ground_truth"])
        assert entry["extra_info"]["index"] == number


def test_weights_have_the_shapes_of_a_qwen2() -> None:
    from ppo.workload import Workload, body

    shapes = body(Workload(hidden=8, layers=2, vocabulary=20))
    assert len(shapes) == 2 + 2 * 12
    assert shapes["model.embed_tokens.weight"] == (20, 8)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (8, 16)


def test_micro_batch_divides_the_mini_batch(tmp_path: Path) -> None:
    from ppo.workload import Workload, Written, overrides

    workload = Workload()
    written = Written(actor=tmp_path, critic=tmp_path, train=tmp_path, test=tmp_path)
    told = dict(item.split("=", 1) for item in overrides(workload, written, tmp_path))
    assert workload.prompts % workload.mini_batch == 0
    micro = int(told["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"])
    assert (workload.mini_batch * workload.samples) % micro == 0


@pytest.fixture
def patched_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module that can be patched, and leave the importer as it was."""
    (tmp_path / "ppo_example.py").write_text("def asked():\n    return 'as shipped'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield "ppo_example"
    sys.meta_path[:] = before
    sys.modules.pop("ppo_example", None)


def _patch(module: str, **changes: Any) -> Any:
    from ppo.patches import Patch

    def other(_: Any, module: ModuleType) -> Any:
        return lambda: f"patched {module.__name__}"

    import importlib.metadata

    patch = Patch(
        name="example",
        distribution="pytest",
        releases=(importlib.metadata.version("pytest"),),
        module=module,
        attribute="asked",
        what="",
        why="",
        replace=other,
        symptom="",
    )
    return replace(patch, **changes)


@pytest.mark.parametrize("first", [True, False], ids=["imported before", "imported after"])
def test_patch_is_applied_when_its_module_is_there(patched_module: str, first: bool) -> None:
    import importlib

    from ppo.patches import install

    if first:
        importlib.import_module(patched_module)
    assert install([_patch(patched_module)]) == ("example",)
    assert first or patched_module not in sys.modules
    assert importlib.import_module(patched_module).asked() == f"patched {patched_module}"


@pytest.mark.parametrize("changes", [{"releases": ("0.0.1",)}, {"distribution": "no-such-distribution"}])
def test_patch_for_another_release_does_nothing(patched_module: str, changes: dict[str, Any]) -> None:
    import importlib

    from ppo.patches import install

    assert install([_patch(patched_module, **changes)]) == ()
    assert importlib.import_module(patched_module).asked() == "as shipped"


def test_patch_of_a_name_that_is_gone_is_an_error(patched_module: str) -> None:
    import importlib

    from ppo.patches import install

    install([_patch(patched_module, attribute="gone")])
    with pytest.raises(AttributeError, match="gone"):
        importlib.import_module(patched_module)


def test_patches_are_named_once_and_say_why() -> None:
    from ppo.patches import PATCHES

    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
    assert all(patch.what and patch.why and patch.symptom and patch.releases for patch in PATCHES)


_DAEMON = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from ppo import tree
tree.adopt_orphans()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(0.2)
below = tree.below(os.getpid())
left = tree.end(os.getpid(), 10)
print(len(below), left, len(tree.below(os.getpid())))
"""


def test_a_daemon_is_found_and_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DAEMON, str(COMPAT)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["1", "[]", "0"]


_SHARES = """
import mmap, os, sys, time
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
time.sleep(60)
"""


def test_meter_knows_the_shared_memory_of_what_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppo import tree

    segment = Path(f"/dev/shm/verl-matrix-test-{os.getpid()}")
    read: list[int] = []
    real = tree.segments

    def counted(pid: int) -> set[Path]:
        read.append(pid)
        return real(pid)

    monkeypatch.setattr(tree, "segments", counted)
    monkeypatch.setattr(tree, "_shared_names", lambda: [segment.name] if segment.exists() else [])
    meter = tree.Meter(os.getpid(), every=0.02)
    meter.start()
    child = subprocess.Popen([sys.executable, "-c", _SHARES, str(segment)])
    try:
        deadline = time.monotonic() + 20
        while not meter.segments and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        before = len(read)
        time.sleep(0.3)
        meter.stop()
    finally:
        child.kill()
        child.wait()
        segment.unlink(missing_ok=True)
    assert meter.segments == {segment}
    # Where no name is new nothing is read: that is what watching costs.
    assert len(read) - before <= 2


def test_without_shared_memory_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ppo import tree

    monkeypatch.setattr(tree, "_SHARED", tmp_path / "none")
    assert tree._shared_names() == []


def test_meter_weighs_what_is_below() -> None:
    from ppo import tree

    child = subprocess.Popen([sys.executable, "-c", "import time; block = bytearray(80 << 20); time.sleep(60)"])
    try:
        meter = tree.Meter(os.getpid(), every=0.05)
        meter.start()
        deadline = time.monotonic() + 20
        while meter.resident < 80 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        meter.stop()
    finally:
        child.kill()
        child.wait()
    assert 80 << 20 <= meter.own <= meter.resident
    assert any(f"[{child.pid}]" in name for name in meter.parts)
    assert 0 < meter.cpu < 20
    assert (tree.memory(child.pid), tree.cpu_seconds(child.pid)) == ((0, 0), 0.0)
    assert tree.named(child.pid) == ""
    assert tree.segments(child.pid) == set()
