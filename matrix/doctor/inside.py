"""What runs inside the environment that is looked at: tells what is installed there, imports none of it.

Standard library only, for Python 3.9 and later; given to the interpreter on standard input, so that `sys.path` begins
with the folder one stands in, as it does for `python -m`. Writes one JSON object to standard output.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

MODULES = (
    "verl",
    "vllm",
    "torch",
    "transformers",
    "ray",
    "tensordict",
    "flash_attn",
    "transfer_queue",
    "numpy",
    "pyarrow",
    "cupy",
)
PREFIXES = (
    "RAY_",
    "NCCL_",
    "CUDA_",
    "PYTORCH_",
    "VLLM_",
    "TORCH_",
    "HF_HUB_",
    "TRANSFORMERS_",
    "GLOO_",
    "MASTER_",
    "VERL_",
    "HYDRA_",
    "NVIDIA_",
)
NAMES = (
    "PYTHONPATH",
    "PYTHONNOUSERSITE",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TMPDIR",
    "TOKENIZERS_PARALLELISM",
)
SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


def main() -> None:
    """Write what is known of this environment, seen from the folder that is given."""
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
    sys.stdout.write(
        json.dumps(
            {
                "python": platform.python_version(),
                "executable": sys.executable,
                "prefix": sys.prefix,
                "base_prefix": sys.base_prefix,
                "purelib": sysconfig.get_paths()["purelib"],
                "path": sys.path,
                "folder": str(Path.cwd()),
                "distributions": distributions(),
                "modules": {name: places(name) for name in MODULES},
                "variables": variables(),
            }
        )
    )


def distributions() -> list[dict[str, Any]]:
    """The distributions found along sys.path, in its order; the first of a name is the one that counts."""
    found = []
    for dist in importlib.metadata.distributions():
        name: Any
        version: Any
        try:
            # A folder that lost its METADATA gives None, or raises, by release of Python.
            name, version = dist.metadata["Name"], dist.version
        except Exception:
            name = version = None
        where = str(getattr(dist, "_path", ""))
        found.append(
            {
                "name": name,
                "version": version,
                "where": where,
                "requires": list(dist.requires or []) if name else [],
                "editable": editable(dist),
                "files": name is None or dist.files is not None,
            }
        )
    return found


def editable(dist: importlib.metadata.Distribution) -> str | None:
    """The folder that an editable installation points to, None for an ordinary one."""
    try:
        text = dist.read_text("direct_url.json")
        data: Any = json.loads(text) if text else {}
    except (OSError, ValueError):
        return None
    return str(data.get("url")) if data.get("dir_info", {}).get("editable") else None


def places(module: str) -> dict[str, Any]:
    """Where along sys.path something of that name lies, the first being what an import takes."""
    found = []
    for entry in sys.path:
        folder = Path(entry or Path.cwd()) / module
        if folder.is_dir():
            found.append({"path": str(folder), "package": (folder / "__init__.py").is_file()})
        elif folder.with_suffix(".py").is_file():
            found.append({"path": str(folder.with_suffix(".py")), "package": True})
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    origin: Any = spec.origin if spec else None
    if spec is not None and origin in (None, "namespace") and spec.submodule_search_locations:
        origin = next(iter(spec.submodule_search_locations), None)
    return {"origin": origin, "found": found, "namespace": bool(spec and spec.origin in (None, "namespace"))}


def variables() -> dict[str, str]:
    """The environment variables that matter here; none that could hold a secret."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name in NAMES or name.startswith(PREFIXES)) and not any(word in name.upper() for word in SECRET)
    }


if __name__ == "__main__":
    main()
