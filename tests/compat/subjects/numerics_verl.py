"""Calls verl's own numerical functions with small inputs; argv[1] names the case; last line: the numbers as JSON."""

import importlib
import json
import sys


def empty_mask() -> dict[str, object]:
    """Return the mean over a mask that selects nothing."""
    import torch
    from verl.utils.torch_functional import masked_mean

    print("READY", flush=True)
    return {"mean": float(masked_mean(torch.tensor([1.0, 2.0]), torch.zeros(2)))}


def nan_outside() -> dict[str, object]:
    """Return the mean over the one place that is selected, beside a NaN that is not."""
    import torch
    from verl.utils.torch_functional import masked_mean

    print("READY", flush=True)
    return {"mean": float(masked_mean(torch.tensor([float("nan"), 3.0]), torch.tensor([0.0, 1.0])))}


def ulysses_heads() -> dict[str, object]:
    """Let verl patch a model of 14 attention heads for a sequence parallel size of 4."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    print("READY", flush=True)
    config = Qwen2Config(vocab_size=32, hidden_size=112, intermediate_size=64, num_hidden_layers=1,
                         num_attention_heads=14, num_key_value_heads=2)  # fmt: skip
    apply_monkey_patch(Qwen2ForCausalLM(config), ulysses_sp_size=4)
    return {}


def gae_gap() -> dict[str, object]:
    """Return how far a masked token (a tool's answer inside a response) moves the advantage of the tokens before it."""
    import torch
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    print("READY", flush=True)
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[0.1, 0.2, 0.0, 0.0, 0.3, 0.4]])
    poisoned = torch.tensor([[0.1, 0.2, 50.0, -70.0, 0.3, 0.4]])
    clean = compute_gae_advantage_return(rewards, values, mask, 1.0, 0.95)[1] * mask
    dirty = compute_gae_advantage_return(rewards, poisoned, mask, 1.0, 0.95)[1] * mask
    return {"moved": float((clean - dirty).abs().max())}


def reinforce_gap() -> dict[str, object]:
    """Return REINFORCE++'s returns of a reward at the end, over a response with a masked stretch inside."""
    from types import SimpleNamespace

    import torch
    from verl.trainer.ppo import core_algos

    print("READY", flush=True)
    import inspect

    compute = core_algos.compute_reinforce_plus_plus_outcome_advantage
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    names = list(inspect.signature(compute).parameters)
    given = {"config": SimpleNamespace(gamma=1.0)} if "config" in names else {"gamma": torch.tensor(1.0)}
    return {"returns": compute(rewards, mask, **given)[1].flatten().tolist()}


def algorithms() -> dict[str, object]:
    """Return verl's PPO arithmetic on fixed inputs: KL estimators, GRPO advantages, GAE, aggregated losses."""
    import torch
    from verl.trainer.ppo import core_algos

    print("READY", flush=True)
    logp, ref = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.5, -1.0, -0.5]])
    mask = torch.tensor([[1.0, 1.0, 1.0]])
    found: dict[str, object] = {}
    for kind in ("kl", "abs", "mse", "low_var_kl"):
        found[kind] = core_algos.kl_penalty(logp, ref, kind).flatten().tolist()
    values = torch.tensor([[0.1, 0.2, 0.3]])
    returns = core_algos.compute_gae_advantage_return(torch.tensor([[0.0, 0.0, 1.0]]), values, mask, 1.0, 0.95)[1]
    found["gae_returns"] = returns.flatten().tolist()
    return found


def math_verify_thread() -> dict[str, object]:
    """Return verl's math_verify score of a right answer, from the main thread and from another."""
    import threading

    importlib.import_module("math_verify")
    from verl.utils.reward_score.math_verify import compute_score

    print("READY", flush=True)
    scores: dict[str, float] = {}

    def score(where: str) -> None:
        scores[where] = float(compute_score("The answer is \\boxed{4}", "4"))

    score("main")
    thread = threading.Thread(target=score, args=("thread",))
    thread.start()
    thread.join()
    return dict(scores)


def overlong_patch() -> dict[str, object]:
    """Return the patch size that verl's data set takes for a processor whose images have patches of 16."""
    from types import SimpleNamespace

    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    print("READY", flush=True)
    held: dict[str, object] = {}

    class Subject(RLHFDataset):  # type: ignore[misc]
        def _download(self, *_: object, **__: object) -> None:
            held.update(vars(self))

        def _read_files_and_tokenize(self) -> None: ...

    processor = SimpleNamespace(image_processor=SimpleNamespace(patch_size=16))
    Subject([], SimpleNamespace(), OmegaConf.create({}), processor=processor)
    return {"patch_size": held.get("image_patch_size")}


def chunked_guard() -> dict[str, object]:
    """Let verl's vLLM rollout check a context of 10240 tokens, 8192 batched tokens and chunked prefill."""
    import tempfile
    from types import SimpleNamespace

    import torch
    from omegaconf import OmegaConf
    from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout

    print("READY", flush=True)
    store = f"file://{tempfile.mkdtemp()}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    config = OmegaConf.create({
        "tensor_model_parallel_size": 1, "data_parallel_size": 1, "expert_parallel_size": 1,
        "pipeline_model_parallel_size": 1, "max_num_batched_tokens": 8192, "enable_chunked_prefill": True,
        "prompt_length": 2048, "response_length": 8192, "max_model_len": 10240, "enforce_eager": True,
        "free_cache_engine": False, "load_format": "dummy", "engine_kwargs": {"vllm": {}}, "layered_summon": False,
        "calculate_log_probs": False, "max_num_seqs": 8, "dtype": "bfloat16", "gpu_memory_utilization": 0.1,
        "disable_log_stats": True, "seed": 0, "limit_images": None, "trust_remote_code": False,
    })  # fmt: skip
    hf = SimpleNamespace(max_position_embeddings=32768, rope_scaling=None)
    tokenizer = SimpleNamespace(pad_token_id=0)
    import inspect

    names = inspect.signature(vLLMRollout.__init__).parameters
    given = {"model_path": "/nowhere", "config": config, "tokenizer": tokenizer, "model_hf_config": hf,
             "model_config": SimpleNamespace(local_path="/nowhere", tokenizer=tokenizer, hf_config=hf, lora_rank=0,
                                             trust_remote_code=False, lora={}), "device_mesh": None}  # fmt: skip
    vLLMRollout(**{name: value for name, value in given.items() if name in names})
    return {}


_ALL = (
    empty_mask,
    nan_outside,
    ulysses_heads,
    gae_gap,
    reinforce_gap,
    algorithms,
    math_verify_thread,
    overlong_patch,
    chunked_guard,
)
CASES = {function.__name__: function for function in _ALL}
if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
