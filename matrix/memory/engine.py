"""vLLM on one GPU: what it asks for, what is left for its KV cache, and by which rules it refuses to start.

Read from vLLM 0.24.0 (v1/worker/gpu_worker.py, v1/worker/utils.py, v1/core/kv_cache_utils.py, config/vllm.py):
it asks for `gpu_memory_utilization` of the whole card and refuses where less is free; takes off what a profiling pass
of `max_num_batched_tokens` tokens and its sampler held, and an estimate of its CUDA graphs; and refuses where what is
left holds no sequence of `max_model_len`. What its profiling leaves out, by release, lies on top (runner.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from matrix.memory.constants import Constants
from matrix.memory.phase import Holding, Part
from matrix.memory.runner import CURRENT, Runner, runner_of
from matrix.memory.shape import Shape
from matrix.memory.workload import Workload

BLOCK = 16
"""Tokens of a block of the KV cache (vLLM's default on CUDA with flash-attention)."""
PROGRAMS = 132
"""Programs of vLLM's top-k and top-p kernel: the multiprocessors of H100 and H200 (other cards have 58 to 148)."""
BUCKETS = 512
"""The largest batch that vLLM captures a graph for, whatever `max_num_seqs` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """vLLM's share of one GPU, for a workload on a card of `total` bytes; `release` is vLLM's."""

    workload: Workload
    total: int
    constants: Constants
    release: str = CURRENT

    @property
    def runner(self) -> Runner:
        """Return the model runner that the release takes for this model."""
        return runner_of(self.release, self._shape.family)

    @property
    def requested(self) -> int:
        """Return what vLLM allows itself, in bytes."""
        return math.ceil(self.total * self.workload.rollout.gpu_memory_utilization)

    @property
    def weights(self) -> float:
        """Return the bytes of its bfloat16 weights; tied ones lie there once."""
        return 2.0 * self._shape.parameters / self._parallel

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes that the KV cache holds for a token, in all layers; a KV head is never split."""
        heads = max(1, self._shape.num_key_value_heads // self._parallel)
        return 2 * 2 * heads * self._shape.head_dim * self._shape.num_hidden_layers

    @property
    def pass_bytes(self) -> float:
        """Return the peak of the profiling pass: the MLP of its tokens, or the sampler over its sequences."""
        tokens = self.workload.rollout.max_num_batched_tokens
        sequences = min(self.workload.rollout.max_num_seqs, tokens)
        hidden = 2 * self._shape.hidden_size
        mlp = 6 * self._shape.intermediate_size / self._parallel
        forward = tokens * (mlp + self.constants.engine_token_copies * hidden)
        # A row of float32 logits for each program of the kernel that masks them, kept from then on.
        rows = min(1 << (sequences - 1).bit_length(), PROGRAMS)
        each = sequences * self.constants.sampler_bytes_per_logit + 4 * rows
        sampler = self._shape.vocab_size * (each if self.runner.profiles_sampler else 2 * sequences)
        return max(forward, tokens * hidden + sampler) + self.constants.engine_workspace_bytes

    @property
    def graphs(self) -> int:
        """Return how many CUDA graphs are captured: pieces for every size, whole ones for those of a decoding batch."""
        if self.workload.rollout.enforce_eager:
            return 0
        sequences = self.workload.rollout.max_num_seqs
        largest = min(2 * sequences, BUCKETS, self.workload.rollout.max_num_batched_tokens)
        sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, BUCKETS + 1, 16)) if size <= largest]
        return len(sizes) + len([size for size in sizes if size <= sequences])

    @property
    def graph_bytes(self) -> float:
        """Return what its CUDA graphs hold."""
        return self.graphs * self._shape.num_hidden_layers * self.constants.graph_bytes_per_layer

    @property
    def available(self) -> float:
        """Return what is left for the KV cache, in bytes; negative where nothing is."""
        taken = self.weights + self.pass_bytes + self.constants.engine_other_bytes
        return self.requested - taken - (self.graph_bytes if self.runner.profiles_graphs else 0)

    @property
    def kv_tokens(self) -> int:
        """Return how many tokens the KV cache holds, whole blocks only."""
        return max(0, int(self.available // (BLOCK * self.bytes_per_token))) * BLOCK

    @property
    def needed(self) -> int:
        """Return what one sequence of `max_model_len` takes of the KV cache, in bytes."""
        return -(-self.workload.max_model_len // BLOCK) * BLOCK * self.bytes_per_token

    @property
    def sequences(self) -> float:
        """Return how many sequences of the workload's full length run at a time, before vLLM preempts some."""
        blocks = -(-min(self.workload.length, self.workload.max_model_len) // BLOCK)
        return min(self.kv_tokens / BLOCK / blocks, float(self.workload.rollout.max_num_seqs))

    def awake(self) -> Holding:
        """Return what it holds while it generates."""
        kv_cache = float(self.kv_tokens * self.bytes_per_token)
        return self._still() + Holding(
            parts={
                Part.ENGINE_WEIGHTS: self.weights,
                Part.ENGINE_PEAK: self.pass_bytes,
                Part.KV_CACHE: kv_cache,
            }
        )

    def weighing(self) -> Holding:
        """Return what it holds while new weights arrive: its weights are there, its KV cache is not."""
        return self._still() + Holding(parts={Part.ENGINE_WEIGHTS: self.weights})

    def asleep(self) -> Holding:
        """Return what stays while the others work: all of it without `free_cache_engine`."""
        return self._still() if self.workload.rollout.free_cache_engine else self.awake()

    def _still(self) -> Holding:
        """Return what is never given back: the process's context, its graphs, its buffers."""
        context = self.constants.engine_context_bytes + self.constants.engine_other_bytes
        return Holding(
            parts={
                Part.ENGINE_CONTEXT: context + self.constants.engine_unaccounted_bytes,
                Part.ENGINE_GRAPHS: float(self.graph_bytes),
            }
        )

    @property
    def _shape(self) -> Shape:
        return self.workload.shape

    @property
    def _parallel(self) -> int:
        return self.workload.rollout.tensor_model_parallel_size
