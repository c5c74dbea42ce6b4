"""The smallest piece of a run that each patch is for; `python -m ppo.pieces NAME` tries it without, then with.

Prints one JSON line: `without` is the traceback of the piece as the packages ship it ("" where it went well), `with`
the same once the patch is in place. Says so where the patch is no longer needed, and where it no longer helps.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from ppo import workload
from ppo.patches import PATCHES, WITHOUT, install


def one_backend() -> None:
    """Open verl's process group, alone, and add up a tensor in it."""
    import torch
    import torch.distributed as dist
    import verl.utils.distributed as distributed

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "DIST_INIT_METHOD": f"file://{folder}/store"}
        distributed.initialize_global_process_group_ray()
        try:
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.tolist() == [1.0, 1.0, 1.0], total
        finally:
            dist.destroy_process_group()


def critic_attention() -> None:
    """Load a critic, configured for eager attention, as verl does."""
    import torch
    import verl.utils.model as model
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        workload.write_critic(workload.Workload(), Path(folder))
        config = AutoConfig.from_pretrained(folder, attn_implementation="eager", num_labels=1)
        critic = model.load_valuehead_model(folder, torch.float32, config, False)
        values = critic(input_ids=torch.tensor([[3, 4, 5]])).logits
        assert values.shape == (1, 3, 1), values.shape


def keep_weight() -> None:
    """Load weights into a linear layer of vLLM a second time, as every sync does, and compute with them."""
    import torch
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    layer = torch.nn.Linear(64, 96, bias=False).requires_grad_(False)
    method = UnquantizedLinearMethod()
    inputs = torch.randn(5, 64)
    for _ in range(2):
        weight = torch.randn(96, 64)
        default_weight_loader(layer.weight, weight)
        method.process_weights_after_loading(layer)
        got = layer.cpu_linear(inputs, layer.weight, None)
        torch.testing.assert_close(got, inputs @ weight.T, rtol=1e-4, atol=1e-4)


PIECES: dict[str, Callable[[], None]] = {
    "one-backend": one_backend,
    "critic-attention": critic_attention,
    "keep-weight": keep_weight,
}


def _tried(piece: Callable[[], None]) -> str:
    try:
        piece()
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> int:
    """Return 0 once both have been tried, whatever came of them."""
    (name,) = sys.argv[1:]
    os.environ |= {
        "VERL_USE_EXTERNAL_MODULES": "ppo.plugin",
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        WITHOUT: name,
    }
    import verl  # noqa: F401  loads the plug-in, without the patch

    without = _tried(PIECES[name])
    installed = install([patch for patch in PATCHES if patch.name == name])
    print(json.dumps({"installed": installed, "without": without, "with": _tried(PIECES[name])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
