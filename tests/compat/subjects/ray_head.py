"""Starts a head node with `ray start` and the arguments after argv[1], the version it says it has (`-`: its own).

In a session of its own: the head must outlive this process, whose group ends with it.
"""

import importlib.util
import os
import subprocess
import sys

if "VERL_MATRIX_INNER" not in os.environ:
    inner = {**os.environ, "VERL_MATRIX_INNER": "1"}
    raise SystemExit(subprocess.call([sys.executable, *sys.argv], env=inner, start_new_session=True, timeout=180))

import ray

if sys.argv[1] != "-":
    ray.__version__ = sys.argv[1]
import ray.scripts.scripts

# What Ray chooses by itself is the same for every cluster of a machine. A Ray without its client refuses to hear of
# that one's port.
ports = ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
if importlib.util.find_spec("grpc") is not None:
    ports.append("--ray-client-server-port=0")
sys.argv = ["ray", "start", "--head", "--include-dashboard=false", "--num-cpus=2", *ports, *sys.argv[2:]]
ray.scripts.scripts.main()
