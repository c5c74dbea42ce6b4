"""The light parts of the PPO run on a GPU: settings by release, timeline, driver, what is hidden. No GPU, no verl."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COMPAT = Path(__file__).resolve().parents[1] / "compat"
GOLDEN = Path(__file__).resolve().parent / "golden" / "ppo"


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(COMPAT))
    for name in ("VERL_MATRIX_MODEL", "VERL_MATRIX_DATA", "VERL_MATRIX_TOKENIZER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def words(version: str, *, flash: bool = True, reward: bool = True, **changes: Any) -> list[str]:
    """Return the overrides of a plan."""
    from ppo.gpu_settings import Place, Plan, overrides

    place = Place(
        model=Path("/m"), train=Path("/t"), test=Path("/v"), out=Path("/o"), reward=Path("/r.py") if reward else None
    )
    return overrides(Plan(**changes), place, version, flash)


@pytest.mark.parametrize(
    ("version", "expected"), [("0.9.1", (0, 9, 1)), ("0.7.1", (0, 7, 1)), ("0.9.1.dev3", (0, 9, 1)), ("0.10", (0, 10))]
)
def test_release(version: str, expected: tuple[int, ...]) -> None:
    from ppo.gpu_settings import release

    assert release(version) == expected


UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
LATER = "+critic.ppo_infer_max_token_len_per_gpu=8192"


@pytest.mark.parametrize(("version", "has"), [("0.7.1", False), ("0.8.0", False), ("0.9.0", True), ("0.9.1", True)])
def test_keys_that_a_release_lacks_are_left_out(version: str, has: bool) -> None:
    found = words(version)
    assert (UNITS in found) is has
    assert (LATER in found) is has
    assert len({word.split("=")[0] for word in found}) == len(found)


@pytest.mark.parametrize("version", ["0.6.0", "0.6.1", "0.7.0"])
def test_names_of_older_releases(version: str) -> None:
    found = words(version, more=("reward.num_workers=3",))
    assert "custom_reward_function.path=/r.py" in found
    assert [word for word in found if word.startswith("reward.")] == ["reward.num_workers=3"]
    assert "reward.custom_reward_function.path=/r.py" in words("0.7.1")


@pytest.mark.parametrize("flash", [True, False])
def test_sequences_are_packed_only_with_flash_attention(flash: bool) -> None:
    found = words("0.9.1", flash=flash)
    assert f"actor_rollout_ref.model.use_remove_padding={flash}" in found
    assert f"critic.model.use_remove_padding={flash}" in found
    asked = [word for word in found if word.endswith("attn_implementation=sdpa")]
    assert len(asked) == (0 if flash else 2)
    assert any("micro_batch_size_per_gpu" in word for word in found) is not flash
    assert any("max_token_len" in word for word in found) is flash


@pytest.mark.parametrize(
    ("graphs", "eager", "compilation", "level"),
    [("few", False, True, True), ("eager", True, False, True), ("default", False, False, False)],
)
def test_how_the_rollout_decodes(graphs: str, eager: bool, compilation: bool, level: bool) -> None:
    found = words("0.9.1", graphs=graphs)
    assert f"actor_rollout_ref.rollout.enforce_eager={eager}" in found
    assert any("compilation_config=" in word for word in found) is compilation
    assert any("optimization_level=0" in word for word in found) is level


def test_without_a_critic_its_model_is_named_still() -> None:
    found = words("0.9.1", estimator="grpo", more=("trainer.balance_batch=False",))
    assert [word for word in found if word.startswith(("critic.", "+critic."))] == [
        "critic.model.path=/m",
        "critic.ppo_max_token_len_per_gpu=8192",
    ]
    assert found[-1] == "trainer.balance_batch=False"


def test_a_real_model_has_the_reward_of_verl() -> None:
    assert not [word for word in words("0.9.1", reward=False) if "custom_reward" in word]


@pytest.mark.parametrize(("batch", "expected"), [(128, 64), (2, 1), (7, 7)])
def test_mini_batch_divides_the_batch(batch: int, expected: int) -> None:
    from ppo.gpu_settings import Plan

    assert Plan(batch=batch).mini_batch == expected


class FakeNvml:
    """NVML as `ctypes` calls it, with two GPUs whose used memory is told."""

    def __init__(self, used: list[list[int]], fails: str = "") -> None:
        self.used, self.fails = used, fails

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the name of the library
        return 9 if self.fails == "start" else 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.used)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _: Any) -> int:  # noqa: N802
        text.value = f"GPU-{handle.value - 1}abcd-ef".encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, _: Any) -> int:  # noqa: N802
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:  # noqa: N802
        assert memory._obj.version == 0x02000028
        series = self.used[handle.value - 1]
        memory._obj.used = series.pop(0) if len(series) > 1 else series[0]
        return 0


def test_the_driver_names_gpus_and_their_memory() -> None:
    from ppo.gpu import Device, Driver

    driver = Driver(FakeNvml([[5], [7]]))
    devices = driver.devices()
    assert devices == [Device(0, "GPU-0abcd-ef", "NVIDIA H200"), Device(1, "GPU-1abcd-ef", "NVIDIA H200")]
    assert [driver.used(device.index) for device in devices] == [5, 7]


def test_a_driver_that_does_not_start_is_an_error() -> None:
    from ppo.gpu import Driver

    with pytest.raises(OSError, match="NVML would not start"):
        Driver(FakeNvml([[0]], fails="start"))


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, [0, 1]),
        ("", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-1abcd-ef", [1]),
        ("GPU-1ab,0", [1, 0]),
        ("0,7,1", [0]),
        ("0,0", [0]),
        ("-1", []),
    ],
)
def test_which_gpus_a_variable_names(named: str | None, expected: list[int]) -> None:
    from ppo.gpu import Driver, visible

    assert [device.index for device in visible(Driver(FakeNvml([[0], [0]])).devices(), named)] == expected


def test_the_meter_keeps_the_peak_and_what_has_not_come_back() -> None:
    from ppo.gpu import Driver, GpuMeter

    gib = 1 << 30
    driver = Driver(FakeNvml([[gib, 3 * gib, 9 * gib, 2 * gib, 2 * gib, gib]]))
    meter = GpuMeter(driver, driver.devices(), every=0.01)
    meter.start()
    deadline = time.monotonic() + 5
    while meter.peak < 9 * gib and time.monotonic() < deadline:
        time.sleep(0.01)
    meter.stop()
    assert (meter.before, meter.peak) == (gib, 9 * gib)
    assert meter.returned(patience=5) == 0
    stuck = GpuMeter(Driver(FakeNvml([[gib, 2 * gib]])), driver.devices())
    assert stuck.returned(patience=0.3) == gib
    stuck.stop()


def test_memory_is_laid_out_as_nvml_has_it() -> None:
    from ppo.gpu import _Memory

    assert ctypes.sizeof(_Memory) == 40


@pytest.mark.parametrize("name", ["cpu-0.9.1", "h200-0.9.1"])
def test_timeline_of_a_recorded_log(name: str) -> None:
    from ppo.timeline import phases, read_stamped, spans

    reached = phases(read_stamped(GOLDEN / f"{name}.txt"))
    assert reached == json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert sum(spans(reached).values()) == pytest.approx(max(reached.values()))


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("ray init kwargs: {'num_cpus': 16}", "configured"),
        ("2026-11-30 21:36:29,424\tINFO worker.py:2038 -- Started a local Ray instance.", "ray"),
        ("\x1b[36m(TaskRunner pid=12)\x1b[0m TaskRunner hostname: h, PID: 12", "runner"),
        ("(TaskRunner pid=12) Size of train dataloader: 4, Size of val dataloader: 1", "data"),
        ("(TaskRunner pid=12) Total training steps: 3", "data"),
        ("(WorkerDict pid=9) Qwen2ForTokenClassification contains 0.49B parameters", "critic"),
        ("(WorkerDict pid=9) Qwen2ForCausalLM contains 0.49B parameters", "actor"),
        ("(vLLMHttpServer pid=7) ['serve',", "server"),
        (
            "(vLLMHttpServer pid=7) (EngineCore_DP0 pid=8) INFO 11-30 [core.py:1] Initializing a V1 LLM engine",
            "engine core",
        ),
        ("(EngineCore pid=8) INFO gpu_model_runner.py: Model loading took 0.93 GiB", "engine weights"),
        ("(EngineCore pid=8) INFO Graph capturing finished in 1 secs, took 0.1 GiB", "engine graphs"),
        ("(EngineCore pid=8) INFO core.py: init engine (profile, create kv cache) took 9.1 seconds", "engine"),
        ("(TaskRunnerV1 pid=1) INFO:2026:actor and ref model engine initialized", "trainer"),
        ("(vLLMHttpServer pid=8) (Worker_TP0 pid=9) INFO 1", "engine worker"),
        ("(AgentLoopWorkerTQ pid=9) Using dataset class: RLHFDataset", "agents"),
        ("(TaskRunnerV1 pid=1) INFO:2026:all initialize finished, ready to fit", "fit"),
        ("Training Progress:   0%|          | 0/3 [00:00<?, ?it/s]", "fit"),
    ],
)
def test_lines_that_show_a_phase(line: str, phase: str) -> None:
    from ppo.timeline import phases

    assert phase in phases([(1.5, line)])


def test_the_first_line_counts_and_a_phase_that_is_not_shown_is_left_out() -> None:
    from ppo.timeline import phases

    lines = [(1.0, "ray init kwargs: {}"), (2.0, "ray init kwargs: {}"), (3.0, "ready to fit"), (4.0, "nothing")]
    assert phases(lines) == {"configured": 1.0}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Any]:
    """Return a follower of two files that are not there yet; it is stopped afterwards."""
    from ppo.timeline import Follower

    made = Follower(tmp_path / "log.txt", tmp_path / "metrics.jsonl", every=0.01)
    made.start()
    yield made
    made.stop()


def test_a_growing_log_is_stamped_line_by_line(followed: Any, tmp_path: Path) -> None:
    from ppo.timeline import read_stamped

    with (tmp_path / "log.txt").open("ab") as log:
        log.write(b"ray init kwargs: {}\nStarted a local")
        log.flush()
        deadline = time.monotonic() + 5
        while not followed.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [line for _, line in followed.lines] == ["ray init kwargs: {}"]
        time.sleep(0.05)
        log.write(b" Ray instance \xff\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n', encoding="utf-8")
    followed.stop()
    reached = followed.reached()
    assert list(reached) == ["configured", "ray", "step 1", "step 2"]
    assert reached["configured"] < reached["ray"] <= reached["step 1"]
    followed.save(tmp_path / "stamped.txt")
    assert read_stamped(tmp_path / "stamped.txt") == followed.lines


def _customized(folder: Path, code: str, *more: Path) -> Any:
    """Return what a fresh Python prints, as JSON, that finds the folder first."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(map(str, (folder, *more)))},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def test_a_package_is_hidden_from_every_process_of_a_run(tmp_path: Path) -> None:
    from ppo.customize import customize

    code = (
        "import importlib.util, json\n"
        "print(json.dumps([importlib.util.find_spec(name) is not None for name in ('pytest', 'json', 'pluggy')]))"
    )
    assert _customized(customize(tmp_path / "hidden", hidden="pytest"), code) == [False, True, True]
    assert _customized(customize(tmp_path / "none"), code) == [True, True, True]


@pytest.mark.parametrize("first", ["gc.collect()", "kept = [[] for _ in range(1_600_000)]"])
def test_the_collector_waits_for_its_first_time(tmp_path: Path, first: str) -> None:
    from ppo.customize import OBJECTS, customize

    code = (
        "import gc, json\n"
        "seen = [gc.get_threshold()[0], gc.get_stats()[0]['collections']]\n"
        "few = [[] for _ in range(100_000)]\n"
        "seen.append(gc.get_stats()[0]['collections'])\n"
        f"{first}\n"
        "seen += [gc.get_threshold()[0], len(gc.callbacks)]\n"
        "print(json.dumps(seen))"
    )
    given = _customized(tmp_path, "import gc; print(gc.get_threshold()[0])")
    threshold, before, after, later, callbacks = _customized(customize(tmp_path / "site"), code)
    assert (threshold, later, callbacks) == (OBJECTS, given, 0)
    assert before == after, "the collector ran while the first objects were made"


def test_the_own_customization_of_an_environment_still_runs(tmp_path: Path) -> None:
    from ppo.customize import customize

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.seen = True\n", encoding="utf-8")
    code = "import json, sys; print(json.dumps(getattr(sys, 'seen', False)))"
    folder = customize(tmp_path / "site")
    assert _customized(folder, code, tmp_path / "own") is True
    assert _customized(folder, code) is False


def _prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flash: bool, **options: Any) -> Any:
    import ppo.gpu_run as gpu_run
    from ppo.gpu import Driver, GpuMeter
    from ppo.gpu_settings import Plan

    driver = Driver(FakeNvml([[100], [200]]))
    seen = [driver.devices()[1]]
    monkeypatch.setattr(gpu_run, "_meter", lambda count: (GpuMeter(driver, seen, every=0.01), seen))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if flash else None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.1")
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text('{"vocab_size": 1024}', encoding="utf-8")
    monkeypatch.setattr(gpu_run, "model_for", lambda name, folder, seed: config.parent)
    return gpu_run.prepare(tmp_path, Plan(shape="tiny", batch=8, steps=1), COMPAT, **options)


@pytest.mark.parametrize(
    ("flash", "options", "estimator", "samples", "has_flash"),
    [
        (True, {}, "gae", 1, True),
        (False, {}, "grpo", 2, False),
        (False, {"estimator": "gae"}, "gae", 1, False),
        (True, {"estimator": "grpo"}, "grpo", 2, True),
        (True, {"hide_flash": True}, "grpo", 2, False),
        (True, {"hide_flash": True, "estimator": "gae"}, "gae", 1, False),
    ],
)
def test_what_is_run_with_and_without_flash_attention(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flash: bool,
    options: Any,
    estimator: str,
    samples: int,
    has_flash: bool,
) -> None:
    run = _prepared(tmp_path, monkeypatch, flash=flash, **options)
    assert (run.plan.estimator, run.plan.samples, run.plan.samples * run.plan.batch) == (estimator, samples, 8)
    assert run.facts["flash_attn"] is has_flash
    assert f"algorithm.adv_estimator={estimator}" in run.words
    assert run.environment["CUDA_VISIBLE_DEVICES"] == "1"
    site, compat = run.environment["PYTHONPATH"].split(":")
    assert Path(compat) == COMPAT
    hidden = '"flash_attn"' in Path(site, "sitecustomize.py").read_text(encoding="utf-8")
    assert hidden is bool(options.get("hide_flash"))
    run.meter.start()
    run.settle()
    told = run.told()
    assert (told["before"], told["peak"], told["left"]) == (200, 200, 0)
    assert told["plan"]["shape"] == "tiny"


@pytest.mark.parametrize("devices", [True, False])
def test_what_is_done_beside_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: bool) -> None:
    import ppo.gpu_run as gpu_run

    run = _prepared(tmp_path, monkeypatch, flash=True)
    run.facts["devices"] = run.facts["devices"] if devices else []
    see = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], sys.argv[1:])"
    monkeypatch.setattr(gpu_run, "_WARM", see)
    monkeypatch.setattr(gpu_run, "_KERNEL", see)
    run.warm(run.environment, tmp_path)
    expected = {"warm.txt": " []\n"} | ({"kernel.txt": "1 ['8', '1024']\n"} if devices else {})
    assert [process.wait(10) for process in run.beside] == [0] * len(expected)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.txt")} == expected


def test_a_real_model_and_real_data_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_MATRIX_MODEL", "/models/real")
    monkeypatch.setenv("VERL_MATRIX_DATA", "/data/gsm8k")
    run = _prepared(tmp_path, monkeypatch, flash=True)
    assert run.facts["model"] == "given"
    assert run.plan.lr == 1e-6
    assert "data.train_files=/data/gsm8k/train.parquet" in run.words
    assert "actor_rollout_ref.rollout.ignore_eos=False" in run.words
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("named", "expected"), [(None, [0, 1]), ("GPU-1abcd-ef", [1])])
def test_what_watches_the_gpus(monkeypatch: pytest.MonkeyPatch, named: str | None, expected: list[int]) -> None:
    import ppo.gpu_run as gpu_run
    from ppo.gpu import Driver

    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(gpu_run, "Driver", lambda: Driver(FakeNvml([[5], [5]])))
    meter, devices = gpu_run._meter(len(expected))
    assert meter is not None
    assert [device.index for device in devices] == expected
    assert meter.before == 5 * len(expected)


def test_a_run_takes_as_many_gpus_as_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import ppo.gpu_run as gpu_run
    from ppo.gpu import Driver

    monkeypatch.setattr(gpu_run, "Driver", lambda: Driver(FakeNvml([[5], [5]])))
    assert [device.index for device in gpu_run._meter(1)[1]] == [0]
    with pytest.raises(ValueError, match="3 GPUs are asked for, and 2 are visible"):
        gpu_run._meter(3)


def test_without_a_driver_nothing_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    import ppo.gpu_run as gpu_run
    from ppo.gpu import Driver

    monkeypatch.setattr(gpu_run, "Driver", lambda: Driver(FakeNvml([], fails="start")))
    assert gpu_run._meter(1) == (None, [])
