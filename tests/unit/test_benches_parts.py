"""Parts of the cheap benches that compare, switch and count, as far as they go without torch."""

from __future__ import annotations

import json
import math
import signal
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

COMPAT = Path(__file__).parents[1] / "compat"
if str(COMPAT) not in sys.path:
    sys.path.insert(0, str(COMPAT))

from benches import ceiling, generating, rollout, sides, sketches, switches, update  # noqa: E402
from benches.record import Record, strict  # noqa: E402
from benches.sides import Fault  # noqa: E402
from benches.taking_turns import compared  # noqa: E402

from bench.peaks import Ceiling, Numbers  # noqa: E402


def apart(one: Path, other: Path) -> dict[str, Any]:
    return sketches.apart(sketches.read(one), sketches.read(other))


def sketch(path: Path, *figures: float, **head: Any) -> Path:
    sketches.write(path, {"names": ["w"], "counts": [len(figures)], **head}, array("f", figures))
    return path


def test_sketches_lie_apart_by_the_length_of_their_difference(tmp_path: Path) -> None:
    one = sketch(tmp_path / "a" / "x", 3.0, 4.0, norm=5.0, loss=0.5)
    other = sketch(tmp_path / "b", 3.0, 4.5, norm=5.4, loss=0.5)
    found = apart(one, other)
    assert found == {
        "grad_norm": [5.0, 5.4], "loss": [0.5, 0.5], "relative": pytest.approx(0.1), "mean": 0.25, "most": 0.5,
        "figures": 2,
    }  # fmt: skip
    assert apart(one, one)["relative"] == 0.0


@pytest.mark.parametrize(
    ("figures", "counts", "why"),
    [((1.0, 2.0), [1, 1], "other pieces"), ((1.0, math.nan), [2], "not finite"), ((1.0, math.inf), [2], "not finite")],
)
def test_sketches_that_cannot_be_compared_say_why(
    figures: tuple[float, ...], counts: list[int], why: str, tmp_path: Path
) -> None:
    one, other = sketch(tmp_path / "a", 1.0, 2.0), sketch(tmp_path / "b", *figures, counts=counts)
    found = apart(one, other)
    assert why in found["why"]
    assert sketches.within(found, "float32") is None


def test_nothing_is_not_apart_from_nothing(tmp_path: Path) -> None:
    zero, some = sketch(tmp_path / "a", 0.0), sketch(tmp_path / "b", 1.0)
    assert apart(zero, zero)["relative"] == 0.0
    assert apart(zero, some)["relative"] == math.inf


@pytest.mark.parametrize(
    ("relative", "floor", "numbers", "same"),
    [
        (1e-4, 0.0, "float32", True),
        (2e-3, 0.0, "float32", False),
        (2e-3, 1e-3, "float32", True),
        (0.03, 0.0, "bfloat16", True),
        (0.04, 0.005, "bfloat16", False),
        (0.03, None, "something else", True),
    ],
)
def test_what_is_the_same_depends_on_the_numbers_and_on_a_sides_own_spread(
    relative: float, floor: float | None, numbers: str, same: bool
) -> None:
    assert sketches.within({"relative": relative, "floor": floor}, numbers) is same


def ranks(folder: Path, phase: str, *figures: tuple[float, ...]) -> list[dict[str, Any]]:
    folder.mkdir()
    return [{phase: {"path": str(sketch(folder / f"{rank}", *held))}} for rank, held in enumerate(figures)]


def test_gradients_of_ranks_are_compared_by_the_worst_of_them(tmp_path: Path) -> None:
    one = ranks(tmp_path / "a", "update_actor", (1.0,), (1.0,))
    other = ranks(tmp_path / "b", "update_actor", (1.0,), (1.5,))
    assert compared(one, other, "update_actor")["relative"] == 0.5


def test_sequences_are_the_same_whether_ranks_share_or_divide_them(tmp_path: Path) -> None:
    divided = ranks(tmp_path / "a", "values", (1.0, 2.0), (3.0,))
    shared = ranks(tmp_path / "b", "values", (1.0, 2.0, 3.0), ())
    assert compared(divided, shared, "values")["relative"] == 0.0
    assert compared(divided, shared, "values")["figures"] == 3


@pytest.mark.parametrize(
    ("visible", "rank", "own"),
    [(None, 1, "1"), ("2,3", 0, "2"), ("GPU-a, GPU-b", 1, "GPU-b"), ("", 1, None)],
)
def test_rank_sees_one_gpu_and_takes_it_for_the_first(visible: str | None, rank: int, own: str | None) -> None:
    found = sides._world(rank, 2, 29500, visible)
    assert found.get("CUDA_VISIBLE_DEVICES") == own
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == (str(rank), "2", "0")


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks need as many GPUs, and CUDA_VISIBLE_DEVICES names 1"):
        sides._world(0, 2, 29500, "0")


def test_answers_agree_until_they_part(tmp_path: Path) -> None:
    one = sketch(tmp_path / "a", -1.0, -2.0, -3.0, -1.0, -1.0, -1.0, tokens=[[5, 6, 7], [1, 2, 3]])
    other = sketch(tmp_path / "b", -1.0, -2.5, -3.0, -1.0, -9.0, -9.0, tokens=[[5, 6, 7], [1, 9, 9]])
    assert rollout.agreement(one, other) == {"agree": 4 / 5, "mean": 0.125, "most": 0.5, "tokens": 4}


CONFIG = {
    "actor_rollout_ref": {
        "actor": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 8192, "ppo_micro_batch_size_per_gpu": None},
        "model": {"enable_gradient_checkpointing": True, "use_remove_padding": True},
        "rollout": {
            "log_prob_max_token_len_per_gpu": "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}",
            "log_prob_micro_batch_size_per_gpu": None,
            "enforce_eager": False,
        },
    },
    "critic": {"model": {"enable_gradient_checkpointing": False}, "ppo_max_token_len_per_gpu": 8192},
    "data": {"train_batch_size": 8},
}


@pytest.mark.parametrize(
    ("key", "value", "release", "as_what"),
    [
        ("actor_rollout_ref.model.enable_gradient_checkpointing", False, "0.9.1", "changed"),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 4096, "0.9.1", "changed"),
        ("actor_rollout_ref.model.use_remove_padding", False, "0.9.1", "blocking"),
        ("critic.ppo_max_token_len_per_gpu", 4096, "0.8.0", "changed"),
        ("critic.ppo_max_token_len_per_gpu", 4096, "0.9.1", "idle"),
        ("critic.ppo_micro_batch_size_per_gpu", 4, "0.9.1", "idle"),
        ("critic.use_dynamic_bsz", False, "0.9.1", "idle"),
        ("actor_rollout_ref.rollout.enforce_eager", True, "0.9.1", "idle"),
        ("data.train_batch_size", 4, "0.9.1", "idle"),
    ],
)
def test_what_differs_is_switched_takes_a_process_or_is_read_by_no_update(
    key: str, value: object, release: str, as_what: str
) -> None:
    one, other = OmegaConf.create(CONFIG), OmegaConf.create(CONFIG)
    OmegaConf.update(other, key, value, force_add=True)
    found = switches.judged(switches.differing([one, other]), release)
    assert list(found["idle"] if as_what == "idle" else found["changed"]) == [key]
    assert found["blocking"] == ([key] if as_what == "blocking" else [])


def test_same_configurations_differ_in_nothing() -> None:
    assert switches.differing([OmegaConf.create(CONFIG)] * 2) == {}


def test_fields_of_an_engine_are_what_the_configuration_resolves_to() -> None:
    found = switches.fields(OmegaConf.create(CONFIG), "actor", padded=False)
    assert found["infer_max_token_len_per_gpu"] == found["max_token_len_per_gpu"] == 8192
    frozen = SimpleNamespace()
    switches.set_fields(frozen, found)
    assert frozen.use_dynamic_bsz is True
    assert switches.checkpoints(OmegaConf.create(CONFIG), "actor") is True
    assert switches.checkpoints(OmegaConf.create(CONFIG), "critic") is False


@pytest.mark.parametrize(
    ("key", "run"),
    [
        ("enforce_eager", True),
        ("max_num_batched_tokens", True),
        ("engine_kwargs.vllm.optimization_level", True),
        ("free_cache_engine", False),
        ("log_prob_max_token_len_per_gpu", False),
        ("agent.num_workers", False),
        ("n", False),
    ],
)
def test_engine_that_only_generates_reads_a_key_or_not(key: str, run: bool) -> None:
    assert generating.is_run(f"actor_rollout_ref.rollout.{key}") is run
    assert not generating.is_run(f"actor_rollout_ref.actor.{key}")


class Module:
    """A module as torch has them: children, hooks before a call, a call."""

    def __init__(self, *children: Module) -> None:
        self._children = children
        self.hooks: list[Any] = []

    def children(self) -> Any:
        return iter(self._children)

    def modules(self) -> Any:
        yield self
        for child in self._children:
            yield from child.modules()

    def register_forward_pre_hook(self, hook: Any) -> None:
        self.hooks.append(hook)

    def call(self) -> None:
        for hook in self.hooks:
            hook(self, ())
        for child in self._children:
            child.call()


class TinyDecoderLayer(Module):
    """A layer that runs twice where it is recomputed."""

    again = 1

    def call(self) -> None:
        for _ in range(self.again):
            super().call()


class Model(Module):
    """A model that knows gradient checkpointing; `stuck` is one that never follows."""

    config = SimpleNamespace(_attn_implementation="eager")
    is_gradient_checkpointing = False
    stuck = False

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        assert gradient_checkpointing_kwargs == {"use_reentrant": False}
        self._set(True)

    def gradient_checkpointing_disable(self) -> None:
        self._set(False)

    def _set(self, to: bool) -> None:
        if not self.stuck:
            self.is_gradient_checkpointing = to
            for one in self.modules():
                if isinstance(one, TinyDecoderLayer):
                    one.again = 2 if to else 1


def test_switch_is_seen_in_how_often_a_layer_is_called() -> None:
    model = Model(TinyDecoderLayer(Module()), TinyDecoderLayer(Module()))
    wrapped = Module(model)
    calls = switches.Calls(wrapped)
    for enable, layer in ((False, 1), (True, 2), (False, 1)):
        switches.checkpoint(wrapped, enable)
        calls.reset()
        wrapped.call()
        assert (calls.model, calls.layer) == (1, layer)
    assert switches.attention(wrapped) == "eager"


def test_switch_that_does_not_hold_is_an_error() -> None:
    model = Model(TinyDecoderLayer(Module()))
    model.stuck = True
    with pytest.raises(RuntimeError, match="was not switched on"):
        switches.checkpoint(model, True)


@pytest.mark.parametrize("made", [Module(), Model(Module())])
def test_what_is_no_model_with_layers_is_an_error(made: Module) -> None:
    with pytest.raises(TypeError):
        switches.Calls(made)


def test_ranks_are_one_by_the_slowest() -> None:
    first = {"seconds": 1.0, "memory": {"allocated": 5}, "numerics": {}, "more": {"a": 1}, "tokens": 8}
    second = {"seconds": 2.0, "memory": {"allocated": 4}, "numerics": {"loss": 1.0}, "more": {"a": 2}, "tokens": 8}
    assert update.merged([first, second]) == {
        "seconds": 2.0, "memory": {"allocated": 5}, "numerics": {"loss": 1.0}, "more": {"a": 1, "by_rank": [1.0, 2.0]},
        "tokens": 8,
    }  # fmt: skip
    assert update.merged([first]) == first


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("OutOfMemoryError", True),
        ("KV cache too small", True),
        ("SIGKILL", True),
        ("RuntimeError", False),
        ("exit code 1", False),
    ],
)
def test_death_is_of_memory_or_of_something_else(kind: str, memory: bool) -> None:
    assert Fault("build", kind, "").of_memory is memory


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def test_record_is_whole_at_every_moment_and_knows_no_nan(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("an earlier launch's\n", encoding="utf-8")
    record = Record(tmp_path, "update")
    assert (read(tmp_path)["ended"], (tmp_path / "samples.jsonl").exists()) == ("running", False)
    record.sample(loss=math.nan, several=[math.inf, 1.0])
    record.reach("here")
    line = json.loads((tmp_path / "samples.jsonl").read_text(encoding="utf-8"))
    assert (line["loss"], line["several"]) == (None, [None, 1.0])
    assert list(read(tmp_path)["reached"]) == ["here"]
    assert record.end("passed", 0) == 0
    assert read(tmp_path)["ended"] == "passed"
    assert strict({1: (math.nan,)}) == {"1": [None]}


class Steady:
    """Products that take a second a thousand, the first call one more."""

    def __init__(self) -> None:
        self.cold = True

    def run(self, calls: int) -> float:
        cold, self.cold = self.cold, False
        return calls / 1000 + (1.0 if cold else 0.0)


def test_runs_of_a_product_last_their_share_of_the_time() -> None:
    case = ceiling.Case(100, "nt")
    samples = list(ceiling.measured(case, Steady(), ceiling.Clocks(None), 4.0))
    assert [sample["place"] for sample in samples] == [-1, *range(ceiling.RUNS)]
    assert [sample["warm_up"] for sample in samples] == [True] + [False] * ceiling.RUNS
    assert sum(sample["seconds"] for sample in samples[1:]) == pytest.approx(4.0, rel=0.05)
    assert samples[1]["flops"] == pytest.approx(2e6 * 1000)


def test_best_case_by_its_median_is_the_ceiling() -> None:
    runs = [("a", 5.0), ("a", 1.0), ("a", 6.0), ("b", 5.5), ("b", 5.6), ("b", 5.4)]
    samples = [
        {"phase": name, "warm_up": False, "flops": flops, "seconds": 0.5, "clock_mhz": 1980.0, "power_w": 690.0}
        for name, flops in runs
    ] + [{"phase": "b", "warm_up": True, "flops": 99.0, "seconds": 0.5}]
    found = ceiling.best(samples)
    assert [(one["case"], one["flops"], one["runs"]) for one in found] == [("b", 5.5, 3), ("a", 5.0, 3)]
    said = ceiling.how(found[0], "torch 2.11.0")
    assert said == (
        "product of b in bf16, random normal numbers, median of 3 runs of 0.50 s, at 1980 MHz and 690 W, torch 2.11.0"
    )
    assert "MHz" not in ceiling.how({**found[0], "clock_mhz": None}, "torch")
    # What it says is a ceiling of the tables of peaks.
    assert Ceiling(flops=found[0]["flops"], numbers=Numbers("bf16"), how=said).flops == 5.5


def test_clocks_are_told_as_far_as_the_driver_tells_them() -> None:
    class Library:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 0

        def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, found: Any) -> int:  # noqa: N802
            found._obj.value = 1755
            return 0

        def nvmlDeviceGetPowerUsage(self, handle: Any, found: Any) -> int:  # noqa: N802
            return 3

    assert ceiling.Clocks(0, Library()).read() == {"clock_mhz": 1755.0}
    assert ceiling.Clocks(None).read() == {}


def test_product_of_matrices_counts_a_multiply_and_an_add() -> None:
    case = ceiling.Case(4096, "nn")
    assert (case.flops, case.name) == (2 * 4096**3, "4096x4096x4096 nn")


def test_ceiling_is_on_record_with_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "Products", lambda case, device: Steady())
    monkeypatch.setattr(ceiling, "library_of", lambda device: "a library")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert ceiling.main(["--out", str(tmp_path), "--device", "cpu", "--seconds", "6"]) == 0
    found = read(tmp_path)
    assert (found["ended"], found["ceiling"]["numbers"], len(found["by_case"])) == ("passed", "bf16", 6)
    # The larger product of the two sizes does more in the same time.
    assert found["ceiling"]["flops"] == pytest.approx(2 * 256**3 * 1000)
    assert Ceiling(**{**found["ceiling"], "numbers": Numbers(found["ceiling"]["numbers"])}).flops > 0
    assert len((tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 6 * (1 + ceiling.RUNS)


@pytest.mark.parametrize(
    ("error", "code", "ended"),
    [(RuntimeError("CUDA out of memory"), 1, "faulted"), (SystemExit(143), 143, "signal")],
)
def test_ceiling_that_is_not_measured_says_why(
    error: BaseException, code: int, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: ceiling.Case, device: str) -> None:
        raise error

    monkeypatch.setattr(ceiling, "Products", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert ceiling.main(["--out", str(tmp_path), "--device", "cpu"]) == code
    found = read(tmp_path)
    assert (found["ended"], found["code"], "ceiling" in found) == (ended, code, False)
    assert found["fault"] is None or found["fault"]["kind"] == "OutOfMemoryError"
