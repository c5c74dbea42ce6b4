"""What is made of Ray: machines out of its nodes, options of a task, and how each loss is told; with a fake of ray."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from matrix.errors import ToolError, UsageError
from matrix.executors import ray_cluster
from matrix.executors.cluster import LostError
from matrix.executors.demand import GIB, Demand, Machine
from matrix.executors.parcel import Parcel
from matrix.executors.ray_cluster import KIND, RayCluster, RaySent, open_cluster

PARCEL = Parcel(body=b"zip", digest="0" * 64, machine="x86_64")


class RayError(Exception):
    """Root of what a ray raises."""


def raises(name: str, base: type[Exception] = RayError, **more: object) -> Exception:
    """Return an error of that class; its text names a machine, as ray's do."""
    kind: type[Exception] = type(name, (base,), {})
    error = kind("node 10.0.0.7 died")
    for key, value in more.items():
        setattr(error, key, value)
    return error


@dataclass
class FakeStream:
    """Results of a task, one by one; an error among them is raised by `get`."""

    results: list[Any]

    def __next__(self) -> Any:
        if not self.results:
            raise StopIteration
        return self.results.pop(0)


@dataclass
class FakeRay:
    """As much of ray as is used."""

    listed: list[dict[str, Any]] = field(default_factory=list)
    stream: FakeStream = field(default_factory=lambda: FakeStream([]))
    ready: list[bool] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    refusal: Exception | None = None
    __version__ = "2.60.0"

    class exceptions:  # noqa: N801 - as ray calls it
        RayError = RayError

    @property
    def cloudpickle(self) -> FakeRay:
        return self

    def register_pickle_by_value(self, module: ModuleType) -> None:
        self.told.append(module.__name__)

    def init(self, **options: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(options)

    def put(self, body: bytes) -> str:
        return f"ref of {body!r}"

    def nodes(self) -> list[dict[str, Any]]:
        return self.listed

    def remote(self, *given: Any) -> Any:
        if callable(given[0]):
            return self
        self.told.append(given)
        return self.stream

    def options(self, **options: Any) -> FakeRay:
        self.told.append(options)
        return self

    def wait(self, streams: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        ready = self.ready.pop(0) if self.ready else True
        return (streams, []) if ready else ([], streams)

    def get(self, result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    def cancel(self, stream: Any, force: bool) -> None:
        self.told.append("cancel")
        raise ValueError("it has ended")

    def shutdown(self) -> None:
        self.told.append("shutdown")


def cluster(ray: FakeRay) -> RayCluster:
    return RayCluster(ray, PARCEL, contextlib.ExitStack())


def test_machines_are_the_nodes_that_are_alive() -> None:
    ray = FakeRay(
        listed=[
            {"NodeID": "a", "Alive": True, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 2.0**36, f"{KIND}H200": 1}},
            {"NodeID": "b", "Alive": False, "Resources": {}},
            {"NodeID": "c", "Alive": True, "Resources": {"CPU": 2.0, "node:10.0.0.7": 1.0}},
            {"NodeID": "d", "Alive": True},
        ]
    )  # fmt: skip
    assert cluster(ray).machines() == (
        Machine(id="a", gpus=8, cpus=64.0, memory=64 * GIB, kinds=frozenset({"H200"})),
        Machine(id="c", cpus=2.0),
        Machine(id="d"),
    )
    assert ray.told == ["matrix.executors.carrier"]


def test_an_errand_is_a_task_that_ray_never_repeats() -> None:
    ray = FakeRay()
    made = cluster(ray)
    made.send("the errand", Demand(gpus=2, cpus=3, memory=5 * GIB), "H100", "")
    options, given = ray.told[1:]
    assert options == {
        "num_cpus": 3, "num_gpus": 2, "memory": 5 * GIB, "accelerator_type": "H100", "max_retries": 0,
        "num_returns": "streaming", "name": "verl-matrix",
    }  # fmt: skip
    assert given == ("ref of b'zip'", PARCEL.digest, "x86_64", "the errand")
    made.send("x", Demand(), "", "")
    assert {"memory", "accelerator_type", "scheduling_strategy"} & set(ray.told[3]) == set()
    made.close()
    assert ray.told[-1] == "shutdown"


def test_a_preferred_machine_is_a_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ray.util.scheduling_strategies")
    module.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)  # type: ignore[attr-defined]
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", module)
    ray = FakeRay()
    cluster(ray).send("x", Demand(), "", "abc")
    assert ray.told[1]["scheduling_strategy"] == ("abc", True)


def test_lines_come_and_in_between_somebody_looks() -> None:
    idle: list[int] = []
    ray = FakeRay(stream=FakeStream(["a", "b"]), ready=[False, True, False, False])
    assert list(RaySent(ray, ray.stream).lines(lambda: idle.append(1))) == ["a", "b"]
    assert len(idle) == 3


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (raises("NodeDiedError"), "its machine was lost"),
        (raises("WorkerCrashedError"), "its worker was killed, or the machine was lost"),
        (raises("ObjectLostError"), "its machine was lost with what it had not handed on"),
        (raises("ObjectFreedError", type("ObjectLostError", (RayError,), {})), "its machine was lost with what"),
        (raises("OutOfMemoryError"), "Ray killed it because the memory of the machine ran out"),
        (raises("RayTaskError", cause=OSError(28, "No space left on device")), "be unpacked there (No space left on"),
        (raises("RayTaskError", cause=OSError()), "be unpacked there (OSError)"),
        (raises("RayTaskError", cause=KeyError("x")), "Ray ended it (KeyError)"),
        (raises("RpcError"), "Ray ended it (RpcError)"),
    ],
)
def test_a_loss_is_told_without_the_name_of_a_machine(error: Exception, reason: str) -> None:
    ray = FakeRay(stream=FakeStream(["a", error]))
    lines = RaySent(ray, ray.stream).lines(lambda: None)
    assert next(lines) == "a"
    with pytest.raises(LostError) as caught:
        next(lines)
    assert reason in caught.value.reason
    assert "10.0.0.7" not in caught.value.reason


def test_what_was_cancelled_is_no_loss() -> None:
    ray = FakeRay(stream=FakeStream(["a", raises("TaskCancelledError")]))
    sent = RaySent(ray, ray.stream)
    lines = sent.lines(lambda: None)
    next(lines)
    sent.cancel()
    assert ray.told == ["cancel"]
    with pytest.raises(KeyboardInterrupt):
        next(lines)


def test_a_cancelled_task_that_raises_at_once_is_no_loss_either() -> None:
    class Cancelled(FakeRay):
        def get(self, result: Any) -> Any:
            sent.cancel()
            return super().get(result)

    ray = Cancelled(stream=FakeStream([raises("TaskCancelledError")]))
    sent = RaySent(ray, ray.stream)
    with pytest.raises(KeyboardInterrupt):
        list(sent.lines(lambda: None))


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Let a fake be what `import ray` gives."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
    return ray


def test_a_cluster_is_opened_quietly(beside: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    made = open_cluster("", lambda: PARCEL)
    assert beside.told[0]["address"] == "auto"
    print("(raylet) a worker died on 10.0.0.7")  # noqa: T201 - as ray's own thread does
    made.close()
    print("the answer")  # noqa: T201
    assert capsys.readouterr().out == "the answer\n"


def test_a_cluster_that_is_not_there_is_told(beside: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    beside.refusal = ConnectionError("Could not find any\n running Ray instance.")
    with pytest.raises(ToolError, match=r"No cluster of Ray can be used at `1\.2\.3\.4:6379`") as caught:
        open_cluster("1.2.3.4:6379", lambda: PARCEL)
    assert caught.value.why == "Could not find any running Ray instance."
    print("printed again")  # noqa: T201
    assert capsys.readouterr().out == "printed again\n"


def test_ray_client_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Ray Client \(ray://\)"):
        open_cluster("ray://head:10001", lambda: PARCEL)


def test_without_ray_the_command_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolError, match="needs ray beside this tool") as caught:
        open_cluster("auto", lambda: PARCEL)
    assert "pip install 'verl-matrix[ray]'" in caught.value.then
    assert ray_cluster.POLL_S < 1
