"""A side's processes for the tests: the real loop that obeys orders, with a worker that computes nothing.

`FAKE` is a script as `updating.py` and `generating.py` are; what it does is told by words in the plan's `common`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COMPAT = Path(__file__).parents[1] / "compat"
FAKE = """
import os, sys, time
from array import array
from pathlib import Path

sys.path.insert(0, COMPAT)
from benches import obey, sketches


OOM = "CUDA out of memory. Tried to allocate 2 GiB"


class Worker:
    def __init__(self, spec):
        self.spec, self.plan = spec, spec["plan"]
        self.words = dict(word.split("=", 1) for word in self.plan["common"])
        self.repeats, self.rank = 0, int(os.environ.get("RANK", 0))
        if self.words.get("broken"):
            raise ImportError("no verl")

    def do_judge(self):
        blocking = self.words.get("blocking", "").split()
        changed = {} if self.words.get("inert") else {"a.b": [False, True], **{key: [1, 2] for key in blocking}}
        return {"changed": changed, "idle": {"c.d": [1, 2]}, "blocking": blocking}

    def do_build(self, variant):
        if variant == self.words.get("dies_in_build") and not Path(self.words["mark"]).exists():
            Path(self.words["mark"]).touch()
            raise RuntimeError(OOM)
        self.variant = variant
        return {"numbers": "float32", "can_sleep": bool(self.words.get("sleeps")), "kv_tokens": 64}

    def do_room(self):
        free = int(self.words.get("free", 90 << 30))
        return {"before": 100 << 30, "free": free, "total": 140 << 30}

    def do_sketch(self, folder, variant="", rows=0):
        found = {}
        for phase in self.plan["phases"] if rows else ["gen"]:
            path = Path(folder) / f"{phase}.{self.rank}"
            figures = array("f", [1.0, 2.0, 2.0])
            if self.words.get("differs") and variant == "on":
                figures[0] = 2.0
            head = {"counts": [3], "names": ["w"], "norm": 3.0, "loss": 0.5, "tokens": [[5, 6, 7]]}
            sketches.write(path, head, figures)
            found[phase] = {"path": str(path), "as_asked": variant != self.words.get("unseen")}
        return found

    def do_phase(self, variant, phase, seed):
        self._repeat(variant, phase)
        calls = 2 if variant == "on" and phase.startswith("update") else 1
        return {"seconds": 0.5 + self.rank, "tokens": 64, "rows": 8, "memory": {"allocated": 10 + self.rank},
                "numerics": {} if self.rank else {"loss": float("nan"), "finite": False},
                "more": {"micro_batches": 1, "layer_calls": calls, "seed": seed, "pid": os.getpid()}}

    def do_repeat(self, seed):
        self._repeat(self.variant, "gen")
        return {"seconds": 0.25, "tokens": 64, "rows": 8, "memory": {}, "numerics": {}, "more": {"seed": seed}}

    def do_rest(self):
        return {"seconds": 0.1} if self.words.get("sleeps") else {}

    do_rouse = do_rest

    def _repeat(self, variant, phase):
        self.repeats += 1
        time.sleep(float(self.words.get("slow", 0)))
        if self.words.get("dies_at") == f"{variant}.{phase}" and self.repeats > int(self.words.get("after", 0)):
            print("the last words", flush=True)
            how = self.words["how"]
            if how == "kill":
                os.kill(os.getpid(), 9)
            if how == "exit":
                os._exit(7)
            if how == "hang":
                time.sleep(60)
            raise RuntimeError(OOM if how == "oom" else how)


if __name__ == "__main__":
    sys.exit(obey.main(Worker))
"""


def script(folder: Path) -> Path:
    """Write the script of a side and return it."""
    path = folder / "fake_side.py"
    path.write_text(FAKE.replace("COMPAT", repr(str(COMPAT)), 1), encoding="utf-8")
    return path


def plan(folder: Path, kind: str = "update", **more: Any) -> Path:
    """Write a plan whose model is there already and return its file."""
    made = {"kind": kind, "model": str(folder), "prompt": 6, "response": 2, "batch": 8, "repeats": 4, "warm_up": 1,
            "off": ["a.b=False"], "on": ["a.b=True"], "limit": 60, "seconds": 50, **more}  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def lines(out: Path) -> list[dict[str, Any]]:
    """Return the samples of a launch."""
    path = out / "samples.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def result(out: Path) -> dict[str, Any]:
    """Return the result of a launch."""
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found
