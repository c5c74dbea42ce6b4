"""The stage of the rollout engine: vLLM started by verl, on Qwen2.5-0.5B with random weights, measured in sections.

    engine_rollout.py WORK [--device cuda|cpu] [--shape NAME] [--scenes a,b] [--seconds N]

Everything is imported once; each scene is a fork that starts an engine of its own, which forks again without importing
anything. A scene that dies takes no other with it, and after each all that it started is ended. Where the libraries
have touched the driver at import, scenes are processes that begin anew.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Without this, asking torch whether there is a GPU would initialise the driver, and no fork could use it after that.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
# Outside of processed log-probabilities vLLM samples with FlashInfer, which compiles its kernels when first used.
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

from kit.sections import section

SCENES = {
    "main": ("engine_main", 90.0),
    "cold": ("engine_cold", 45.0),
    "expandable": ("engine_starts", 45.0),
    "crowded": ("engine_starts", 30.0),
    "tight": ("engine_starts", 45.0),
    "lora": ("engine_lora", 45.0),
    "graphs": ("engine_starts", 100.0),
}
"""Scenes in the order of how many users their answers concern, the module each is in, and its limit in seconds."""
ON_CPU = ("main", "cold", "lora")
_SUBREAPER = 36


def words() -> argparse.Namespace:
    """Return the command line."""
    made = argparse.ArgumentParser()
    made.add_argument("work", type=Path)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--shape", default="qwen2.5-0.5b")
    made.add_argument("--scenes", default="")
    made.add_argument("--seconds", type=float, default=160.0, help="a scene that begins later than this is left out")
    made.add_argument("--scene", default="", help="run this one, in this process")
    return made.parse_args()


def prepare(asked: argparse.Namespace) -> None:
    """Write the model and import what every scene needs."""
    from workload.model import model_for

    with section("model", stop=True) as out:
        import engine_gap

        folder = model_for(asked.shape, asked.work / "model", dtype="bfloat16" if asked.device == "cuda" else "float32")
        if folder == asked.work / "model":
            engine_gap.sharpen(folder, 8.0 if asked.shape != "tiny" else 4.0)
        out["folder"] = folder.name
        out["bytes"] = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    with section("imports", stop=True) as out, _imports(asked.device, out):
        import torch
        import transformers
        import verl
        import vllm

        importlib.import_module("engine_server")
        importlib.import_module("engine_main")
        importlib.import_module("engine_cold")
        importlib.import_module("vllm.model_executor.models.qwen2")
        out["versions"] = {one.__name__: str(one.__version__) for one in (torch, transformers, verl, vllm)}
        out["cuda_initialized"] = torch.cuda.is_initialized()
    with section("inspect") as out:
        from vllm import ModelRegistry

        about, name = ModelRegistry.inspect_model_cls(["Qwen2ForCausalLM"], _config(folder))
        out["architecture"] = name
        out["generates"] = bool(about.is_text_generation_model)


@contextlib.contextmanager
def _imports(device: str, out: dict[str, Any]) -> Iterator[None]:
    """Keep imports from making a CUDA context and note which did; what they make is never collected."""
    import engine_gpu

    gc.disable()
    try:
        if device != "cuda":
            yield
            return
        with engine_gpu.answered_by_nvml() as touched:
            yield
        out["touched_by"] = touched[:3]
    finally:
        gc.enable()
        # Forks share it for as long as no collection writes to it.
        gc.freeze()


def _config(folder: Path) -> object:
    from vllm.config import ModelConfig

    return ModelConfig(model=str(folder), tokenizer=str(folder), max_model_len=512, dtype="auto", seed=0)


def forked(name: str, asked: argparse.Namespace) -> bool:
    """Run a scene in a fork and return whether it ended within its limit."""
    module, limit = SCENES[name]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            importlib.import_module(module).run(name, asked)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not sys.exit: threads of the engine's front may never end.
            os._exit(code)
    deadline = time.monotonic() + limit * (1 if asked.device == "cuda" else 4)
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.05)
    sys.stderr.write(f"scene {name} was ended after {limit:.0f} s\n")
    return False


def afresh(name: str, asked: argparse.Namespace) -> bool:
    """Run a scene in a process that imports everything again and return whether it ended within its limit."""
    argv = [
        sys.executable,
        __file__,
        str(asked.work),
        "--device",
        asked.device,
        "--shape",
        asked.shape,
        "--scene",
        name,
    ]
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    try:
        subprocess.run(argv, timeout=SCENES[name][1] + 30, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    return True


def main() -> None:
    """Run the scenes that fit into the time."""
    begun = time.monotonic()
    asked = words()
    if asked.scene:
        importlib.import_module(SCENES[asked.scene][0]).run(asked.scene, asked)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    # What a scene leaves behind becomes a child of this process, and is found.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    prepare(asked)
    import engine_gpu

    runs = forked
    baseline = 0
    if asked.device == "cuda":
        with section("fork") as out:
            baseline = engine_gpu.used()
            out["may_use_cuda"] = engine_gpu.fork_may_use_cuda()
            if not out["may_use_cuda"]:
                runs = afresh
    for name in asked.scenes.split(",") if asked.scenes else SCENES if asked.device == "cuda" else ON_CPU:
        if time.monotonic() - begun > asked.seconds:
            sys.stderr.write(f"scene {name} is left out: {asked.seconds:.0f} s are over\n")
            continue
        with section(f"scene {name}") as out:
            out["in_time"] = runs(name, asked)
            out["ended_processes"] = engine_gpu.end_descendants(os.getpid())
            if not out["in_time"] and runs is forked and asked.device == "cuda":
                # A fork that hangs may be the fault of forking: once more, and the rest, without.
                runs = afresh
                out["in_time_afresh"] = runs(name, asked)
                out["ended_processes"] += engine_gpu.end_descendants(os.getpid())
            if asked.device == "cuda":
                now, out["seconds_until_free"] = engine_gpu.settled(baseline + 64 * engine_gpu.MIB, 10.0)
                out["left_bytes"] = now - baseline


if __name__ == "__main__":
    main()
