"""Prints, as JSON, the CUDA_VISIBLE_DEVICES of an actor that asked for no GPU on a node that has one."""

import json
import os

import ray

ray.init(num_cpus=2, num_gpus=1, include_dashboard=False)


class Actor:
    """An actor without a GPU, as verl's trainer, reward and agent workers are."""

    def see(self) -> object:
        """Return the variable as it is inside the actor."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")


actor = ray.remote(num_gpus=0, num_cpus=1)(Actor).remote()
print(json.dumps({"seen": ray.get(actor.see.remote(), timeout=100)}))
