"""The machine of a night: the facts that explain why a probe may say something else than on the night before."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matrix.gpus.fingerprint import PROC, fingerprint
from matrix.gpus.inventory import Inventory
from matrix.gpus.nvml import Driver, NoDriverError

GPU_FACTS = ("gpus", "driver", "cuda_driver")
"""What, where it differs, makes every answer of the tier `gpu` one of another machine."""


def machine_facts(driver: Driver, inventory: Inventory, words: str, *, proc: Path = PROC) -> dict[str, Any]:
    """Return what this machine is, without any name of it: words, kernel, CPU, and driver and GPUs where there are."""
    facts: dict[str, Any] = {"machine": words, "kernel": platform.release().partition("-")[0]}
    if not inventory.gpus:
        return facts
    try:
        told = fingerprint(
            driver, inventory, python=platform.python_version(), installed={}, environ=os.environ, proc=proc
        )
    except NoDriverError:
        return facts
    gpus = [f"{gpu['name']} {gpu['memory_mib']} MiB" for gpu in told["gpus"]]
    cpu = (told.get("cpu") or {}).get("model")
    return facts | {"gpus": gpus, "driver": told["driver"], "cuda_driver": told["cuda_driver"], "cpu": cpu}


def is_other_gpu(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the GPUs or their driver are others than on the night before, on a machine that has some."""
    held = [{name: facts.get(name) for name in GPU_FACTS} for facts in (before, now)]
    return bool(before.get("gpus") and now.get("gpus")) and held[0] != held[1]
