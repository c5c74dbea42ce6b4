"""A Ray driver whose worker holds memory of a GPU: says `holding PID` of the worker, then waits to see it die."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

PROBES = str(Path(__file__).parents[1])


class Holder:
    """An actor with a context of its own on the GPU."""

    def __init__(self) -> None:
        """Hold 2 GiB."""
        sys.path.insert(0, PROBES)
        from gpu_failures.driver_child import MIB, Cuda

        self._cuda = Cuda()
        self._cuda.hold(2048 * MIB)

    def pid(self) -> int:
        """Return the process id."""
        import os

        return os.getpid()

    def wait(self) -> None:
        """Wait to be killed."""
        import time

        time.sleep(600)


def main() -> None:
    """Start Ray with one GPU, hold, and wait."""
    ray.init(num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    holder = ray.remote(num_gpus=1)(Holder).remote()
    say(f"holding {ray.get(holder.pid.remote())}")
    try:
        ray.get(holder.wait.remote())
    except ray.exceptions.RayActorError:
        say("worker died")
    ray.shutdown()


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
