"""What the FLOPs counter of real releases of verl gives: `python -m bench.counter FOLDER`, recorded as JSON.

FOLDER holds unpacked wheels, one folder a release (`0.9.1/verl/…`). Each release's `flops_counter.py` is run as it is,
in a process of its own, with empty stand-ins for torch and transformers, from which it takes a type and the name of the
GPU. What it gives is what `bench.verl_flops` is tested against.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from matrix.errors import ToolError

RECORD = Path("tests/unit/golden/bench/flops_counter.json")
COUNTER = "verl/utils/flops_counter.py"
TIMEOUT_S = 60.0
GPUS = (
    "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H800", "NVIDIA H20",
    "NVIDIA A100-SXM4-80GB", "NVIDIA A800-SXM4-80GB", "NVIDIA A40", "NVIDIA A10", "NVIDIA L40S", "NVIDIA L40",
    "NVIDIA L20", "NVIDIA L4", "NVIDIA B200", "NVIDIA GB200", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X OAM",
    "AMD Instinct MI350X", "NVIDIA GeForce RTX 3070 Ti",
)  # fmt: skip
SHAPES = ("qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b", "qwen3-0.6b")
LENGTHS = ((1024,) * 64, (76, 180, 336, 768), (8192,))

_CHILD = """
import inspect, json, math, sys, types

asked = json.load(sys.stdin)
name = [""]

class Config:
    def __init__(self, fields):
        self.__dict__.update(fields)

class Device(types.ModuleType):
    @staticmethod
    def get_device_name():
        return name[0]

def module(path, **members):
    made = types.ModuleType(path)
    made.__dict__.update(members)
    sys.modules[path] = made
    return made

device = Device("cuda")
torch = module("torch", cuda=device, cpu=object())
module("transformers", PretrainedConfig=Config, Qwen2Config=Config, LlamaConfig=Config)
for path in ("verl", "verl.utils"):
    module(path, __path__=[])
module("verl.utils.device", get_torch_device=lambda: device)
source = open(asked["counter"], encoding="utf-8").read()
space = {"__name__": "counter"}
exec(compile(source, asked["counter"], "exec"), space)
out = {"peaks": {}, "tflops": []}
for gpu in asked["gpus"]:
    name[0] = gpu
    peak = space["get_device_flops"]("B")
    out["peaks"][gpu] = None if math.isinf(peak) else peak
for fields in asked["shapes"]:
    counter = space["FlopsCounter"](Config(fields))
    for lengths in asked["lengths"]:
        out["tflops"].append(counter.estimate_flops(lengths, 1.0)[0])
print("\\n" + json.dumps(out))
"""


def counted(counter: Path) -> dict[str, object]:
    """Return what a release's counter gives: `peaks` in FLOP/s by GPU (None: infinite), `tflops` by shape and lengths.

    Raises:
        ToolError: the file cannot be run this way.
    """
    asked = {
        "counter": str(counter),
        "gpus": GPUS,
        "shapes": [_fields(name) for name in SHAPES],
        "lengths": [list(lengths) for lengths in LENGTHS],
    }
    ended = subprocess.run(
        [sys.executable, "-I", "-c", _CHILD],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={},
        check=False,
        start_new_session=True,
    )
    if ended.returncode != 0:
        raise ToolError(f"{counter} cannot be run.", why=ended.stderr.strip()[-500:], then="Give an unpacked wheel.")
    found = json.loads(ended.stdout.splitlines()[-1])
    return {"peaks": found["peaks"], "tflops": found["tflops"]}


def record(folder: Path) -> dict[str, dict[str, object]]:
    """Return what the counters of all releases below a folder give, by release, oldest first.

    Raises:
        ToolError: there is no release, or a counter cannot be run.
    """
    found: dict[Version, Path] = {}
    for inner in folder.iterdir() if folder.is_dir() else ():
        counter = inner / COUNTER
        try:
            version = Version(inner.name)
        except InvalidVersion:
            continue
        if counter.is_file():
            found[version] = counter
    if not found:
        raise ToolError(f"{folder} holds no release with {COUNTER}.", then="Unpack wheels into FOLDER/0.9.1 and so on.")
    return {str(version): counted(found[version]) for version in sorted(found)}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; 0 when it is what was recorded before, 1 when it differs (`--check` then writes nothing)."""
    parser = argparse.ArgumentParser(prog="bench.counter", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="unpacked wheels of verl, one folder a release")
    parser.add_argument("--out", type=Path, default=RECORD, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with the record and write nothing")
    args = parser.parse_args(argv)
    text = json.dumps(record(args.folder), indent=1) + "\n"
    same = args.out.is_file() and args.out.read_text(encoding="utf-8") == text
    if not args.check:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{args.out}: {'the same' if same else 'differs'}\n")
    return 0 if same else 1


def _fields(name: str) -> dict[str, object]:
    from matrix.memory.shape import shape_named

    shape = shape_named(name)
    fields = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size",
    )  # fmt: skip
    found: dict[str, object] = {field: getattr(shape, field) for field in fields}
    if shape.head_dim * shape.num_attention_heads != shape.hidden_size:
        # As transformers has it: only families whose heads are not hidden / heads wide name the width.
        found["head_dim"] = shape.head_dim
    return found | {"model_type": shape.family.value}


if __name__ == "__main__":
    sys.exit(main())
