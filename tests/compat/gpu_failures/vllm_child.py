"""A vLLM engine on a tiny random model: says `holding PID` of its engine core, then generates until that dies."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

TINY = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def main(folder: Path) -> None:
    """Start the engine, find its core, hold, and see it die."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        max_model_len=256,
        max_num_seqs=8,
    )
    pid = core_of(os.getpid())
    say(f"holding {pid}")
    try:
        while True:
            params = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)
            engine.generate([{"prompt_token_ids": [3, 4, 5]}], params, use_tqdm=False)
            time.sleep(0.05)
    except Exception as error:
        say(f"engine died ({type(error).__name__})")
    time.sleep(600)


def core_of(parent: int) -> int:
    """Return the process of the engine core: the child that is named so, else the one with the most memory."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes() + (folder / "comm").read_bytes()
                resident = int((folder / "statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            if int(stat[1]) == parent:
                found[int(folder.name)] = (b"Engine" in words, resident)
    if not found:
        raise SystemExit("the engine has no process of its own")
    return max(found, key=lambda pid: found[pid])


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
