"""The in-cell scripts, as far as they go without a cell: what they tell, how death is read, what a holder does."""

from __future__ import annotations

import ctypes
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMPAT = Path(__file__).parents[1] / "compat"
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from trials import holder, rollout, step, telling, update  # noqa: E402

from matrix.thresholds.knobs import KNOBS, Script, Steps  # noqa: E402


class Gauge:
    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def peaks(self) -> dict[str, int]:
        return {"allocated": 10 * self.resets}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_happens_is_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    teller, gauge = telling.Teller(path), Gauge()
    with teller.trial({"trial": "t1", "knob": "k", "value": 4}) as verdict, teller.part_of("values", gauge) as found:
        assert [line["event"] for line in lines(path)] == ["trial", "part"]
        found["rows"] = 8
    assert verdict.outcome == "pass"
    told = lines(path)
    assert [line["event"] for line in told] == ["trial", "part", "part end", "trial end"]
    assert told[2] | {"at": 0, "seconds": 0} == {
        "event": "part end", "at": 0, "trial": "t1", "part": "values", "ended": "passed", "seconds": 0,
        "peaks": {"allocated": 10}, "rows": 8,
    }  # fmt: skip
    assert (told[3]["outcome"], told[3]["part"], told[3]["how"]) == ("pass", "", "")


@pytest.mark.parametrize(
    ("error", "outcome", "how"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "fail", "OutOfMemoryError"),
        (RuntimeError("CUDA error: out of memory"), "fail", "CUDA error"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), "fail", "cuBLAS"),
        (MemoryError(), "fail", "host memory"),
        (ImportError("no verl"), "unable", "ImportError"),
        (ValueError("does not fit"), "unable", "ValueError"),
    ],
)
def test_fault_of_memory_is_an_answer_and_any_other_is_none(
    error: Exception, outcome: str, how: str, tmp_path: Path
) -> None:
    teller = telling.Teller(tmp_path / "lines.jsonl")

    def fail() -> None:
        raise error

    with teller.trial({"trial": "t"}), teller.part_of("actor update", Gauge()):
        fail()
    end = lines(tmp_path / "lines.jsonl")[-1]
    assert (end["outcome"], end["how"], end["part"]) == (outcome, how, "actor update")
    assert type(error).__name__ in end["text"]
    assert lines(tmp_path / "lines.jsonl")[-2]["ended"] == "died"


VLLM = {
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "no KV cache",
    "ValueError: To serve at least one request with the model's max seq len (32768), (0.38 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.2 GiB).": "KV cache too small",
    "ValueError: Free memory on device cuda:0 (10/139 GiB) on startup is less than desired GPU memory utilization "
    "(0.5, 70 GiB). Decrease GPU memory utilization": "free memory below utilization",
    "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62": "cumem",
    "torch.OutOfMemoryError: CUDA out of memory.": "OutOfMemoryError",
}


@pytest.mark.parametrize(("text", "how"), VLLM.items())
def test_engine_dies_in_its_own_words(text: str, how: str) -> None:
    verdict = telling.Verdict()
    verdict.read(RuntimeError("Engine core initialization failed. See root cause above."), f"INFO loading\n{text}\n")
    assert (verdict.outcome, verdict.how) == ("fail", how)
    assert text[:60] in verdict.text or "Error" not in text


@pytest.mark.parametrize(
    "text",
    [
        "CuMemAllocator: sleep freed 40.00 GiB memory in total, of which 1 GiB is backed up in CPU",
        "Free memory on device (130.1/139.8 GiB) on startup. Desired GPU memory utilization is (0.4, 56 GiB).",
        "Available KV cache memory: 40.1 GiB",
    ],
)
def test_what_an_engine_says_in_passing_is_no_death(text: str) -> None:
    assert telling.how_of(text) == ""


def test_numbers_of_an_engine_are_read_from_its_log() -> None:
    log = """
    Model loading took 0.93 GiB memory and 0.5 seconds
    Available KV cache memory: 27.5 GiB
    GPU KV cache size: 2,403,456 tokens
    Graph capturing finished in 4 secs, took 0.30 GiB
    init engine (profile, create kv cache, warmup model) took 12.50 s (compilation: 3.2 s)
    Available KV cache memory: 28.5 GiB
    """
    assert rollout.numbers(log) == {
        "kv_cache_bytes": 28.5 * 2**30,
        "kv_cache_tokens": 2403456.0,
        "model_bytes": 0.93 * 2**30,
        "graph_bytes": 0.30 * 2**30,
        "init_seconds": 12.5,
    }
    assert rollout.numbers("") == {}


def test_where_there_is_no_gpu_nobody_holds_anything() -> None:
    nobody = rollout.Nobody()
    assert nobody.order(hold=5)["error"] == ""
    assert rollout.Gauge(nobody).peaks()["allocated"] == 0
    nobody.end()


def test_search_and_scripts_agree_on_knobs_and_parts() -> None:
    ours = {key: item for key, item in KNOBS.items() if item.script is Script.UPDATE}
    assert set(ours) == set(update.KNOBS) | set(update.IDLE)
    rows = {Steps.ONE: "value", Steps.SEQUENCE: "tokens", Steps.BLOCK: "fixed"}
    for key, knob in update.KNOBS.items():
        assert set(knob.parts) == set(ours[key].parts), key
        assert knob.rows == rows[ours[key].steps], key


@pytest.mark.parametrize(
    ("knob", "padded", "said"),
    [
        (None, False, ""),
        ("data.max_response_length", False, ""),
        ("critic.ppo_micro_batch_size_per_gpu", True, "does nothing"),
        ("critic.ppo_max_token_len_per_gpu", False, "ppo_infer_max_token_len_per_gpu"),
        ("critic.ppo_max_token_len_per_gpu", True, ""),
        ("a.b", False, "no trial of a.b"),
    ],
)
def test_knob_that_a_release_does_not_read_is_refused_with_the_reason(
    knob: str | None, padded: bool, said: str
) -> None:
    reason = update.refusal({"knob": knob}, padded)
    assert said in reason
    assert bool(reason) == bool(said)


GIB = 2**30


class Driver:
    """The calls of libcuda and libnvidia-ml that a holder makes, on a card of 140 GiB; a context takes 1."""

    def __init__(self) -> None:
        self.used = 2 * GIB
        self.blocks: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        self.used += GIB
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value, total._obj.value = 140 * GIB - self.used, 140 * GIB
        return 0

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:  # noqa: N802
        if self.used + size.value > 140 * GIB:
            return 2
        pointer._obj.value = len(self.blocks) + 1
        self.blocks[pointer._obj.value] = size.value
        self.used += size.value
        return 0

    def cuMemFree_v2(self, pointer: Any) -> int:  # noqa: N802
        self.used -= self.blocks.pop(pointer.value)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, figures: Any) -> int:  # noqa: N802
        array = ctypes.cast(figures, ctypes.POINTER(ctypes.c_ulonglong * 3)).contents
        array[0], array[1], array[2] = 140 * GIB, 140 * GIB - self.used, self.used
        return 0


@pytest.fixture
def device() -> holder.Device:
    driver = Driver()
    return holder.Device(driver=driver, nvml=driver)


def test_ballast_leaves_what_a_small_card_has(device: holder.Device) -> None:
    answer = holder.obey(device, {"leave": 24 * GIB})
    # 2 GiB were in use before anybody came, and would be on the small card.
    assert answer == {"held": 115 * GIB, "context": GIB, "free": 22 * GIB, "total": 140 * GIB, "error": ""}


def test_stand_in_holds_so_much_with_its_context(device: holder.Device) -> None:
    assert holder.obey(device, {"hold": 10 * GIB})["held"] == 9 * GIB
    assert holder.obey(device, {"hold": 5 * GIB})["held"] == 4 * GIB
    assert holder.obey(device, {"look": True})["held"] == 4 * GIB
    assert holder.obey(device, {"hold": GIB // 2})["held"] == 0


def test_order_that_the_driver_refuses_is_answered_with_its_error(device: holder.Device) -> None:
    answer = holder.obey(device, {"hold": 200 * GIB})
    assert (answer["error"], answer["held"]) == ("cuMemAlloc_v2: CUDA error 2: out of memory", 0)


def test_holder_obeys_until_there_are_no_more_orders(device: holder.Device) -> None:
    answers = io.StringIO()
    holder.serve(device, io.StringIO('{"look": true}\n\n{"hold": 3221225472}\n'), answers)
    assert [json.loads(line)["held"] // GIB for line in answers.getvalue().splitlines()] == [0, 2]


SPEC: dict[str, Any] = {
    "shape": "qwen2.5-0.5b", "critic": True, "cap": 70 * GIB, "device": "cuda",
    "settings": {
        "data.max_prompt_length": 512, "data.max_response_length": 256, "data.train_batch_size": 64,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4, "actor_rollout_ref.rollout.max_num_seqs": 512,
        "actor_rollout_ref.rollout.max_model_len": None, "actor_rollout_ref.actor.use_dynamic_bsz": False,
        "actor_rollout_ref.actor.strategy": "fsdp",
    },
    "defaults": ["actor_rollout_ref.actor.strategy"],
}  # fmt: skip


def test_launch_of_a_whole_step_is_told_what_is_no_default(tmp_path: Path) -> None:
    argv = step.words(
        SPEC, {"knob": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "value": 4.0}, 140 * GIB, tmp_path
    )
    line = " ".join(argv[2:])
    assert "--shape qwen2.5-0.5b --steps 2 --limit 420 --utilization 0.200000" in line
    assert "--prompt 512 --response 256 --batch 64" in line
    settings = [argv[at + 1] for at, word in enumerate(argv) if word == "--set"]
    assert settings == [
        "actor_rollout_ref.rollout.max_num_seqs=512",
        "actor_rollout_ref.rollout.max_model_len=null",
        "actor_rollout_ref.actor.use_dynamic_bsz=false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    ]
    alone = step.words({**SPEC, "critic": False, "cap": None}, {"trial": "t"}, 140 * GIB, tmp_path)
    assert alone[-2:] == ["--set", "actor_rollout_ref.actor.use_dynamic_bsz=false"]
    assert ("--estimator" in alone, "0.400000" in alone) == (True, True)


@pytest.mark.parametrize(
    ("log", "part"),
    [
        ("File x, in update_actor\nFile y, in train_mini_batch\ntorch.OutOfMemoryError", "actor update"),
        ("File y, in train_mini_batch\n", "critic update"),
        ("File y, in compute_log_prob\nFile z, in infer_batch", "old log-prob"),
        ("RuntimeError: Engine core initialization failed.", "rollout init"),
        ("nothing of it", "step"),
    ],
)
def test_part_of_a_launch_is_read_from_its_traceback(log: str, part: str) -> None:
    assert step.part_of(log) == part


def test_launch_is_measured_by_what_it_left(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "data": {"perf/max_memory_allocated_gb": 12.5, "x": 1}}\n\n', encoding="utf-8"
    )
    (tmp_path / "log.txt").write_text("Available KV cache memory: 20 GiB\n", encoding="utf-8")
    assert step.told(tmp_path) == {
        "steps": 1,
        "memory_gb": [{"perf/max_memory_allocated_gb": 12.5}],
        "engine": {"kv_cache_bytes": 20.0 * GIB},
    }
    assert step.told(tmp_path / "none")["steps"] == 0


def test_device_is_looked_at_while_a_launch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LOOK_S", 0.001)

    class Growing(rollout.Nobody):
        free = 100

        def order(self, **_: Any) -> dict[str, Any]:
            self.free -= 1
            return {"held": 5, "context": 1, "free": max(self.free, 40), "total": 100, "error": ""}

    watched = step.Device(Growing())
    watched.reset()
    deadline = time.monotonic() + 5
    while watched._most < 54 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watched.peaks() == {"allocated": 54}


@pytest.mark.parametrize(("known", "active", "has"), [(3, 0, False), (0, 0, False), (0, 1, True)])
def test_context_that_an_import_made_is_seen_without_making_one(known: int, active: int, has: bool) -> None:
    class Library:
        def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
            return known

        def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, state: Any) -> int:  # noqa: N802
            state._obj.value = active
            return 0

    assert holder.has_context(Library()) is has


def test_machine_without_a_driver_has_no_context() -> None:
    assert holder.has_context() is False


@pytest.mark.parametrize(
    ("script", "code", "events"),
    [("update", 2, ["start", "unable"]), ("rollout", 2, ["start", "unable"]), ("step", 0, ["start", "ready"])],
)
def test_scripts_share_their_command_line(script: str, code: int, events: list[str], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}", encoding="utf-8")
    path = COMPAT / "trials" / f"{script}.py"
    # Without the site's packages: there is no verl, and a trial that needs it cannot start.
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(path),
        "--spec",
        str(tmp_path / "spec.json"),
        "--out",
        str(tmp_path / "out"),
    ]
    ended = subprocess.run(argv, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, [line["event"] for line in lines(tmp_path / "out")]) == (code, events), ended.stderr
    assert lines(tmp_path / "out")[0]["script"] == script
