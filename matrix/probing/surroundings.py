"""What probes run in: a scratch folder with a short path, and an explicit environment with nothing of the caller's."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matrix.errors import NoSpaceError

_TOKENIZER = "VERL_MATRIX_TOKENIZER"
_PASSED_ON = (
    "CUDA_HOME", "LD_LIBRARY_PATH", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST", "TZ", "VERL_MATRIX_DATA", "VERL_MATRIX_ENGINE_SCENES", "VERL_MATRIX_MODEL",
    _TOKENIZER,
)  # fmt: skip
_PASSED_ON_BY = ("NCCL_",)
"""Beginnings of names: how NCCL finds its way (sockets, interfaces, NVLink multicast) is the machine's affair."""
_SET = {
    "LANG": "C.UTF-8",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # an index then means the same GPU to CUDA as to the driver
    "PYTHONNOUSERSITE": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # hydra brings a plug-in: with a wrong antlr4 runtime pytest would not start
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "offline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The folders of one run of probes, all below `root`, which is gone afterwards."""

    root: Path

    @property
    def home(self) -> Path:
        """Return what the probes have as HOME."""
        return self.root / "h"

    @property
    def temporary(self) -> Path:
        """Return what the probes have as TMPDIR."""
        return self.root / "t"

    @property
    def work(self) -> Path:
        """Return the folder that the probes are started in; nothing lies there that could be imported."""
        return self.root / "w"


@contextlib.contextmanager
def scratch(parent: Path = Path("/tmp")) -> Iterator[Scratch]:  # noqa: S108 - see below
    """Yield a fresh scratch folder and remove it.

    It lies under /tmp and has a short name, because Ray's sockets do: their paths must stay below 108 characters
    (`sun_path`, unix(7)). Raises NoSpaceError where it cannot be made.
    """
    try:
        made = Scratch(root=Path(tempfile.mkdtemp(prefix="vm-", dir=parent)))
        for folder in (made.home, made.temporary, made.work):
            folder.mkdir()
    except OSError as error:
        raise NoSpaceError(f"No scratch folder can be made in {parent}: {error.strerror}.") from error
    try:
        yield made
    finally:
        shutil.rmtree(made.root, ignore_errors=True)


def built(cache: Path) -> dict[str, str]:
    """Return the variable that names the workload's tokenizer, {} where none was built or the caller names another.

    Probes have a HOME of their own and would not find it in the caller's cache.
    """
    folder = cache / "workload" / "tokenizer"
    has = _TOKENIZER not in os.environ and (folder / "tokenizer.json").is_file()
    return {_TOKENIZER: str(folder)} if has else {}


def surroundings(python: Path, given: Scratch, more: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the probes of `python`, with `more` on top.

    PYTHONPATH would shadow what is installed. PYTHONDONTWRITEBYTECODE would have every import of vLLM compiled again.
    No GPU is visible unless `more` says which: what runs without a grant may not hold memory of one.
    """
    passed = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in _PASSED_ON or name.startswith(_PASSED_ON_BY)
    }
    return {
        **passed,
        **_SET,
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": os.pathsep.join([str(python.parent), "/usr/local/sbin", "/usr/local/bin", "/usr/bin", "/bin", "/sbin"]),
        "HOME": str(given.home),
        "TMPDIR": str(given.temporary),
        **more,
    }
