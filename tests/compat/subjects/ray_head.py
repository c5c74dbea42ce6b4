"""Starts a head node with `ray start` and the arguments after argv[1], the version it says it has (`-`: its own)."""

import sys

import ray

if sys.argv[1] != "-":
    ray.__version__ = sys.argv[1]
import ray.scripts.scripts

sys.argv = ["ray", "start", "--head", "--include-dashboard=false", "--num-cpus=2", *sys.argv[2:]]
ray.scripts.scripts.main()
