"""Counts the bytes that real modules hold, on a processor: `CELL/bin/python tests/accuracy/memory_counted.py`.

Runs inside a cell (torch, transformers). A small Qwen2 of transformers is wrapped by torch's own FSDP or FSDP2 with
verl's settings (float32 weights, bfloat16 copies, float32 reduction) in a world of one, and taken twice through a pass
without gradients, two micro-batches and AdamW's step. After every operation of torch the bytes of all storages that are
alive are added up, as their size is then: FSDP resizes them. flash-attn and its cross-entropy, which need a GPU, are
stood in for by functions that keep for the backward pass what those keep and compute nothing.

What comes out is `memory_counted.json`; a unit test holds the memory model against it. Allocator, libraries and
compiled kernels are no part of it: those only a GPU shows.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RESULT = Path(__file__).with_name("memory_counted.json")
ATTENTION = "counted"
BLOCK = 512
"""Bytes that torch's allocator rounds to."""
SHAPE = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2}
LAYERS = 4
SIZES = ((2048, 4096), (1024, 32768))
"""Tokens and vocabulary: one where the layers weigh most, one where the logits do."""


class Counter(TorchDispatchMode):  # type: ignore[misc]
    """Adds up the storages that are alive after each operation, and remembers the most and what was running then."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.at = ""
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((out, args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        self._add_up(str(func))
        return out

    def see(self, tensor: Any) -> None:
        """Count a tensor from now on."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = weakref.ref(storage)
            weakref.finalize(storage, self._alive.pop, key, None)

    def start(self) -> int:
        """Return the bytes that are held now, and count the peak from here."""
        self._add_up("")
        self.peak = self.now
        return self.now

    def _add_up(self, operation: str) -> None:
        storages = (reference() for reference in list(self._alive.values()))
        self.now = sum(-(-found.nbytes() // BLOCK) * BLOCK for found in storages if found is not None)
        if self.now > self.peak:
            self.peak, self.at = self.now, operation


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """Keeps what flash-attn keeps: queries, keys, values, the output, and a float32 a head and token."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, length, width = query.shape
        out = query.new_empty((batch, length, heads, width))
        ctx.save_for_backward(query, key, value, out, query.new_empty((batch, heads, length), dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        query, key, value, _, sums = ctx.saved_tensors
        # flash-attn 2 sums the queries' gradients in float32.
        wide, sums = query.new_empty(query.shape, dtype=torch.float32), torch.empty_like(sums)
        del wide, sums
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class Loss(torch.autograd.Function):  # type: ignore[misc]
    """Keeps what flash-attn's cross-entropy keeps, the logits, and writes their gradient over them."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits)
        return logits.amax(-1).float()

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return ctx.saved_tensors[0].mul_(0)


def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> Any:
    """Return what transformers wants of an attention: the output, and no weights."""
    return Attention.apply(query, key, value), None


def model(head: bool, vocabulary: int, checkpointed: bool) -> Any:
    """Return a Qwen2 of random weights, a language model or a value model with verl's settings for one."""
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, Qwen2Config
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, lambda *_, **__: None)
    config = Qwen2Config(
        **SHAPE,
        num_hidden_layers=LAYERS,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    )
    config.num_labels, config.classifier_dropout = 1, 0.0
    kind = AutoModelForCausalLM if head else AutoModelForTokenClassification
    made = kind.from_config(config, attn_implementation=ATTENTION, dtype=torch.float32)
    if checkpointed:
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return made


def sharded(made: Any, strategy: str) -> Any:
    """Return the model in FSDP's or FSDP2's units, as verl 0.9.1 makes them (engine/fsdp/transformer_impl.py)."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

    mesh = init_device_mesh("cpu", (1,))
    half, full = torch.bfloat16, torch.float32
    if strategy == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=full, cast_forward_inputs=True)
        layers = [module for module in made.modules() if isinstance(module, Qwen2DecoderLayer)]
        for unit in [*layers, made]:
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        return made
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    return FullyShardedDataParallel(
        made,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Qwen2DecoderLayer}),
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=full, buffer_dtype=full),
        device_mesh=mesh,
        use_orig_params=False,
    )


def count(strategy: str, head: bool, checkpointed: bool, tokens: int, vocabulary: int) -> dict[str, object]:
    """Return the bytes beyond what rests, by moment, in the second step."""
    made = sharded(model(head, vocabulary, checkpointed), strategy)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-6)
    ids, places = torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens).unsqueeze(0)
    found: dict[str, object] = {}
    gc.collect()

    def forward() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = made(input_ids=ids, position_ids=places, attention_mask=None, use_cache=False).logits
            return Loss.apply(out.squeeze(0)) if head else out.float()

    with Counter() as counter:
        for parameter in made.parameters():
            counter.see(parameter)
        for _ in range(2):
            rest = counter.start()
            made.eval()
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                made(input_ids=ids, position_ids=places, attention_mask=None, use_cache=False)
            found = {"rest": rest, "infer": counter.peak - rest}
            made.train()
            optimizer.zero_grad()
            for micro in ("first", "second"):
                counter.start()
                forward().sum().backward()
                found[micro], found[f"{micro} at"] = counter.peak - rest, counter.at
            counter.start()
            optimizer.step()
            found["step"] = counter.peak - rest
            optimizer.zero_grad()
    return found


@contextmanager
def world_of_one() -> Iterator[None]:
    """Hold a process group with nobody else in it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Autocast(TorchFunctionMode):  # type: ignore[misc]
    """Casts to float32 what CUDA's autocast casts, of the functions that verl's losses use."""

    WIDE = frozenset(
        {
            torch.nn.functional.softmax,
            torch.nn.functional.log_softmax,
            torch.logsumexp,
            torch.sum,
        }
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.WIDE and args[0].dtype == torch.bfloat16:
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


class KeptLoss(Loss):
    """The same where the entropy needs the logits too: their gradient is written elsewhere."""

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


def losses() -> Iterator[dict[str, object]]:
    """Yield the bytes a logit of verl's own log-probabilities and entropies, forwards and backwards."""
    from torch.utils.checkpoint import checkpoint
    from verl.utils import torch_functional as verl

    def flash(logits: Any, labels: Any) -> Any:
        return KeptLoss.apply(logits)

    def torchs(logits: Any, labels: Any) -> Any:
        return verl.logprobs_from_logits_v2(logits, labels)

    def chunked(size: int) -> Any:
        return functools.partial(verl.entropy_from_logits_with_chunking, chunk_size=size)

    entropies: dict[str, Any] = {
        "none": None,
        "whole": verl.entropy_from_logits,
        "checkpointed": functools.partial(checkpoint, verl.entropy_from_logits, use_reentrant=True),
        **{f"chunks of 1/{parts}": chunked(ROWS // parts) for parts in (32, 8, 2, 1)},
    }
    for loss in (flash, torchs):
        for name, entropy in entropies.items():
            for gradients in (True, False):
                row: dict[str, object] = {"loss": loss.__name__, "entropy": name, "gradients": gradients}
                yield {**row, **_bytes_a_logit(loss, entropy, gradients)}


ROWS, WIDTH = 512, 32768


def _bytes_a_logit(loss: Any, entropy: Any, gradients: bool) -> dict[str, float]:
    head = torch.zeros(WIDTH, 8, dtype=torch.bfloat16, requires_grad=gradients)
    hidden, labels = torch.zeros(ROWS, 8, dtype=torch.bfloat16), torch.zeros(ROWS, dtype=torch.long)
    with Counter() as counter:
        for tensor in (head, hidden, labels):
            counter.see(tensor)
        rest = counter.start()

        def forward() -> Any:
            logits = hidden @ head.t()
            added = entropy(logits) if entropy is not None else 0.0
            return (loss(logits, labels) + added).sum()

        with Autocast(), torch.set_grad_enabled(gradients):
            total = forward()
        found = {"forward": (counter.peak - rest) / (ROWS * WIDTH)}
        if gradients:
            counter.start()
            total.backward()
            found["backward"] = (counter.peak - rest) / (ROWS * WIDTH)
    return {name: round(value, 2) for name, value in found.items()}


def units() -> Iterator[dict[str, object]]:
    """Yield every case of units, heads, checkpointing and sizes, with what was counted."""
    with world_of_one():
        for strategy in ("fsdp", "fsdp2"):
            for head in (True, False):
                for checkpointed in (True, False):
                    for tokens, vocabulary in SIZES:
                        case: dict[str, object] = {"strategy": strategy, "head": head, "checkpointed": checkpointed}
                        case |= {"tokens": tokens, "vocabulary": vocabulary}
                        yield {**case, **count(strategy, head, checkpointed, tokens, vocabulary)}


def main(words: list[str]) -> int:
    """Count what is named (`units`, `losses`; all without a name) and write it into the result."""
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    names = ("torch", "transformers", "verl")
    result |= {"schema": 1, "made_by": "tests/accuracy/memory_counted.py"}
    result |= {"versions": {name: version(name) for name in names}, "shape": {**SHAPE, "num_hidden_layers": LAYERS}}
    for name, key, rows in (("units", "counted", units), ("losses", "losses", losses)):
        if not words or name in words:
            result[key] = []
            for row in rows():
                result[key].append(row)
                sys.stdout.write(json.dumps(row) + "\n")
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
