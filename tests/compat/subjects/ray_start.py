"""Starts or joins Ray with the keywords of argv[1] (JSON) and runs one task; ends with Ray's error where it fails."""

import json
import sys

import ray

keywords = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
if "address" not in keywords:
    keywords = {"num_cpus": 2, "include_dashboard": False, "_metrics_export_port": 0, **keywords}
ray.init(**keywords)


def task() -> int:
    """Return one."""
    return 1


print("task", ray.get(ray.remote(task).remote(), timeout=100))
ray.shutdown()
