"""The cluster of Ray: machines by their resources and labels, an errand as a task whose lines are a stream.

The one module that knows ray, which is imported when a cluster is opened. A task is never retried by Ray itself: it is
the executor that knows what has been observed by then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matrix.errors import ToolError, UsageError
from matrix.executors import carrier
from matrix.executors.cluster import LostError
from matrix.executors.demand import Demand, Machine
from matrix.executors.parcel import Parcel

POLL_S = 0.5
KIND = "accelerator_type:"
"""What Ray puts before the kind of a machine's GPUs, as a resource of it."""
_LOST = {
    "NodeDiedError": "its machine was lost",
    "WorkerCrashedError": "its worker was killed, or the machine was lost",
    "OutOfMemoryError": "Ray killed it because the memory of the machine ran out",
    "ObjectLostError": "its machine was lost with what it had not handed on",
    "OwnerDiedError": "its machine was lost with what it had not handed on",
    "OutOfDiskError": "the disk of the machine is full",
    "TaskUnschedulableError": "the machine that it was meant for was lost",
}


class RayCluster:
    """A cluster that is there; `open_cluster` makes it."""

    def __init__(self, ray: Any, parcel: Parcel, quiet: contextlib.ExitStack) -> None:
        """Send the parcel; `ray` is the module, connected, and `quiet` what lets it print again."""
        self._ray = ray
        self._quiet = quiet
        self._parcel = parcel
        self._body = ray.put(parcel.body)
        # By value: the module is not there where the workers are.
        ray.cloudpickle.register_pickle_by_value(carrier)
        self._task = ray.remote(carrier.carry)

    def machines(self) -> Sequence[Machine]:
        """Return the machines that are alive, as their raylets told of them."""
        return tuple(_machine(node) for node in self._ray.nodes() if node.get("Alive"))

    def send(self, errand: str, demand: Demand, kind: str, machine: str) -> RaySent:
        """Return the errand as a task of Ray, which waits until a machine has what is asked for."""
        options: dict[str, Any] = {
            "num_cpus": demand.cpus,
            "num_gpus": demand.gpus,
            "max_retries": 0,
            "num_returns": "streaming",
            "name": "verl-matrix",
        }
        if demand.memory:
            options["memory"] = demand.memory
        if kind:
            options["accelerator_type"] = kind
        if machine:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=True)
        task = self._task.options(**options)
        stream = task.remote(self._body, self._parcel.digest, self._parcel.machine, errand)
        return RaySent(self._ray, stream)

    def close(self) -> None:
        """Disconnect; Ray ends the tasks of a driver that is gone."""
        with self._quiet:
            self._ray.shutdown()


class RaySent:
    """A task of Ray whose results come one by one."""

    def __init__(self, ray: Any, stream: Any) -> None:
        self._ray = ray
        self._stream = stream
        self._cancelled = False

    def lines(self, idle: Callable[[], object]) -> Iterator[str]:
        """Yield its lines; raises LostError, KeyboardInterrupt, and what `idle` raises."""
        try:
            while True:
                if self._cancelled:
                    raise KeyboardInterrupt
                ready, _ = self._ray.wait([self._stream], timeout=POLL_S)
                if not ready:
                    idle()
                    continue
                try:
                    result = next(self._stream)
                except StopIteration:
                    return
                yield str(self._ray.get(result))
        except self._ray.exceptions.RayError as error:
            if self._cancelled:
                raise KeyboardInterrupt from None
            raise LostError(_words(error)) from error

    def cancel(self) -> None:
        """End it; what it started ends with its worker."""
        self._cancelled = True
        with contextlib.suppress(Exception):
            self._ray.cancel(self._stream, force=True)


def _machine(node: dict[str, Any]) -> Machine:
    has = node.get("Resources", {})
    return Machine(
        id=str(node["NodeID"]),
        gpus=int(has.get("GPU", 0)),
        cpus=float(has.get("CPU", 0)),
        memory=int(has.get("memory", 0)),
        kinds=frozenset(name.removeprefix(KIND) for name in has if name.startswith(KIND)),
    )


def _words(error: BaseException) -> str:
    """Return how an errand was lost; Ray's own text names machines, so of an unknown loss only its class is told."""
    for kind in type(error).__mro__:
        if kind.__name__ in _LOST:
            return _LOST[kind.__name__]
    cause = getattr(error, "cause", None)
    if isinstance(cause, OSError):
        return f"the tool could not be unpacked there ({cause.strerror or type(cause).__name__})"
    return f"Ray ended it ({type(cause or error).__name__})"


def open_cluster(address: str, parcel: Callable[[], Parcel]) -> RayCluster:
    """Return the cluster at an address (`auto` or "": the one that runs on this machine, or that RAY_ADDRESS names).

    Raises:
        ToolError: ray is not installed beside this tool, or there is no such cluster, or it runs another version.
        UsageError: the address is one of Ray Client.
    """
    if address.startswith("ray://"):
        raise UsageError(
            "Observations come as a stream, which Ray Client (ray://) does not have.",
            then="Run this on a machine of the cluster (`ray job submit -- …`), with --address auto.",
        )
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ToolError(
            "The executor `ray` needs ray beside this tool, and it is not there.",
            why=f"({error})",
            then="Run `python -m pip install 'verl-matrix[ray]'`, with the version that the cluster runs: ray==X.Y.Z.",
        ) from error
    with contextlib.ExitStack() as quiet:
        # Ray prints what happens to workers, addresses with it, where the answer of this program goes.
        quiet.enter_context(contextlib.redirect_stdout(quiet.enter_context(Path(os.devnull).open("w"))))
        _connect(ray, address or "auto")
        return RayCluster(ray, parcel(), quiet.pop_all())


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(
            address=address,
            namespace="verl-matrix",
            log_to_driver=False,
            logging_level="error",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        raise ToolError(
            f"No cluster of Ray can be used at `{address}` (ray {ray.__version__} here).",
            why=" ".join(str(error).split())[:400],
            then="Start one (`ray start --head`), or give --address; it has to run the ray and Python that are here.",
        ) from error
