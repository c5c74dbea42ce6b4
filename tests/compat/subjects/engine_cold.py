"""The cold scene: vLLM's own front on the weights of the disk, as a script uses it, and waking all at once."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import engine_gpu
from engine_gap import Answer, Trainer
from engine_main import agree, prompts_of
from kit.sections import section


def answers(llm: Any, prompts: list[list[int]], length: int, temperature: float) -> list[Answer]:
    """Return vLLM's answers with the log-probability of each token said."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=temperature, max_tokens=length, logprobs=0, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    found = []
    for prompt, one in zip(prompts, llm.generate(asked, sampling, use_tqdm=False), strict=True):
        said = one.outputs[0]
        tokens = list(said.token_ids)
        values = [spread[token].logprob for token, spread in zip(tokens, said.logprobs, strict=True)]
        found.append(Answer(prompt, tokens, values))
    return found


def run(name: str, asked: argparse.Namespace) -> None:
    """Run the scene."""
    del name
    cuda = asked.device == "cuda"
    folder = Path(os.environ.get("VERL_MATRIX_MODEL") or asked.work / "model")
    more: dict[str, Any] = {"gpu_memory_utilization": 0.2, "enable_sleep_mode": True} if cuda else {
        "kv_cache_memory_bytes": 256 << 20
    }  # fmt: skip
    with section("load", stop=True) as out:
        from vllm import LLM

        begun = time.monotonic()
        llm = LLM(model=str(folder), enforce_eager=True, max_model_len=2048, max_num_seqs=16, seed=0,
                  dtype="bfloat16" if cuda else "float32", **more)  # fmt: skip
        out["seconds"] = round(time.monotonic() - begun, 2)
        tokenizer = llm.get_tokenizer()
        vocabulary = len(tokenizer)
        prompts = prompts_of(8, 96, vocabulary, seed=5)
        found = answers(llm, prompts, 16, 0.0)
        out["tokens"] = sum(len(one.tokens) for one in found)
        out["agree"] = agree(found, answers(llm, prompts, 16, 0.0))
    with section("executor") as out:
        out["executor"] = type(llm.llm_engine.model_executor).__name__
    with section("raw_logprobs") as out:
        # vLLM's own default, which verl leaves from 0.7 on; nothing is masked here.
        from transformers import AutoConfig

        whole = AutoConfig.from_pretrained(folder).vocab_size
        trainer = Trainer(folder, "cuda" if cuda else "cpu", "bfloat16" if cuda else "float32", whole)
        config = llm.llm_engine.vllm_config.model_config
        out["logprobs_mode"] = str(getattr(config, "logprobs_mode", ""))
        found = answers(llm, prompts, 32, 0.7)
        out["gap"] = trainer.gap(found, 0.7)
        out["gap_without_temperature"] = trainer.gap(found, 1.0)
        out["gap_at_1"] = trainer.gap(answers(llm, prompts, 32, 1.0))
        del trainer
    if cuda:
        wake_all(llm)


def wake_all(llm: Any) -> None:
    """Wake everything at once while another holds most of the card: what is not done any more since there are tags."""
    import torch

    with section("wake_all") as out:
        llm.sleep(level=2)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        out["free"], out["total"] = free, total
        with_weights = 4 * engine_gpu.GIB
        held = torch.empty(free - with_weights, dtype=torch.uint8, device="cuda")
        out["ballast"] = held.numel()
        out["free_beside_ballast"] = torch.cuda.mem_get_info()[0]
        llm.wake_up()
        out["woke"] = True
