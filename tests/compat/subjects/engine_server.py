"""verl's own rollout, without Ray: its HTTP server class in a thread, its adapter that sends weights, on one GPU.

The server and the adapter are the classes of the installed verl (0.7 and later), called as its Ray actors are: the
server's coroutines run in an event loop of a thread of its own, and the adapter gets a handle whose `method.remote()`
starts them there. All that stands in for Ray is the number of the job, which both put into the name of a socket.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import threading
import time
import uuid
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import engine_extension
import ray
import torch
from engine_gap import Answer
from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

START_S = 150.0
CALL_S = 60.0


class _Job:
    """What verl asks Ray's runtime context for."""

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex[:8]

    def get_job_id(self) -> str:
        return self._name

    def get_actor_id(self) -> None:
        return None


class _Remote:
    def __init__(self, loop: asyncio.AbstractEventLoop, method: Any) -> None:
        self._loop, self._method = loop, method

    def remote(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._method(*args, **kwargs), self._loop))


class _Handle:
    def __init__(self, loop: asyncio.AbstractEventLoop, server: Any) -> None:
        self._loop, self._server = loop, server

    def __getattr__(self, name: str) -> _Remote:
        return _Remote(self._loop, getattr(self._server, name))


class Rollout:
    """verl's rollout server; `settings` and `model` are fields of its configurations of rollout and model."""

    def __init__(
        self,
        folder: Path,
        *,
        bucket_mib: int = 300,
        gpus: int = 1,
        model: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        known = {field.name for field in dataclasses.fields(RolloutConfig)}
        given = {"name": "vllm", "n_gpus_per_node": 1, "tensor_model_parallel_size": 1, **settings}
        given["engine_kwargs"] = {
            "vllm": {"worker_extension_cls": engine_extension.NAME, **settings.get("engine_kwargs", {})}
        }
        given["checkpoint_engine"] = CheckpointEngineConfig(update_weights_bucket_megabytes=bucket_mib)
        self.left_out = sorted(set(given) - known)
        config = RolloutConfig(**{name: value for name, value in given.items() if name in known})
        self._begin(config, HFModelConfig(path=str(folder), **(model or {})), gpus)

    @classmethod
    def configured(cls, config: Any, model: Any, gpus: int = 1) -> Rollout:
        """Return the rollout of configurations that verl has made of its own files and overrides."""
        found = cls.__new__(cls)
        found.left_out = []
        found._begin(config, model, gpus)
        return found

    def _begin(self, config: Any, model: Any, gpus: int) -> None:
        job = _Job()
        ray.get_runtime_context = lambda: job
        self.config, self.model = config, model
        self.vocabulary = len(self.model.tokenizer)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True)
        self._thread.start()
        self.server = self.do(self._made(gpus))
        self._adapter: Any = None

    async def _made(self, gpus: int) -> Any:
        # Made inside its loop, as an actor's is: it makes asyncio's own things.
        return vllm_async_server.vLLMHttpServer(
            config=self.config,
            model_config=self.model,
            rollout_mode=RolloutMode.HYBRID,
            workers=[None] * gpus,
            replica_rank=0,
            node_rank=0,
            gpus_per_node=gpus,
            nnodes=1,
            cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        )

    def do(self, work: Coroutine[Any, Any, Any], limit: float = CALL_S) -> Any:
        """Return what a coroutine of the server returns, run in its loop; raises TimeoutError after `limit` seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit)

    def start(self) -> float:
        """Start the engine as verl does, and return the seconds it took until the server listens."""
        begun = time.monotonic()
        self.do(self.server.launch_server(), START_S)
        return round(time.monotonic() - begun, 2)

    def arguments(self) -> Any:
        """Return what verl would start vLLM with, as vLLM parses it; nothing is started."""
        found: list[Any] = []

        async def take(parsed: Any) -> None:
            found.append(parsed)

        self.server.run_server = take
        self.do(self.server.launch_server(), START_S)
        return found[0]

    @property
    def engine(self) -> Any:
        """Return vLLM's AsyncLLM."""
        return self.server.engine

    def ask(self, method: str, *args: Any) -> Any:
        """Return what the worker answers to a call of its extension."""
        return self.do(self.engine.collective_rpc(method, args=args))[0]

    def generate(self, prompts: list[list[int]], limit: float = CALL_S, **sampling: Any) -> list[Answer]:
        """Return the answers of verl's own `generate` to all prompts, asked at once."""

        async def asked() -> list[Any]:
            several = (self.server.generate(prompt, dict(sampling), uuid.uuid4().hex) for prompt in prompts)
            return list(await asyncio.gather(*several))

        found = self.do(asked(), limit)
        return [
            Answer(prompt, list(one.token_ids), list(one.log_probs or []))
            for prompt, one in zip(prompts, found, strict=True)
        ]

    @property
    def adapter(self) -> Any:
        """Return verl's adapter, which lives in the trainer's process and so needs the device there."""
        if self._adapter is None:
            os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "RAY_LOCAL_WORLD_SIZE": "1"})
            self._adapter = ServerAdapter(self.config, self.model, device_mesh=None, replica_rank=0)
            self._adapter.server_handle = _Handle(self._loop, self.server)
        return self._adapter

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], **more: Any) -> float:
        """Send weights as verl's trainer does, its resets of caches included; return the seconds it took."""
        begun = time.monotonic()
        asyncio.run(asyncio.wait_for(self.adapter.update_weights(iter(weights), global_steps=1, **more), CALL_S))
        return round(time.monotonic() - begun, 3)

    def count_resets(self) -> dict[str, int]:
        """Return a table that counts from now on how often each cache of the engine is reset."""
        found = {}
        for name in ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"):
            given = getattr(self.engine, name, None)
            if given is not None:
                found[name] = 0
                setattr(self.engine, name, _counting(name, given, found))
        return found

    def sync_only(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send weights and reset nothing: what verl's adapter does, without its last lines."""
        adapter = self.adapter

        async def send() -> None:
            call = self.engine.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": adapter.use_shm})
            taken = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
            sender = BucketedWeightSender(
                zmq_handle=adapter.zmq_handle,
                bucket_size_mb=self.config.checkpoint_engine.update_weights_bucket_megabytes,
                use_shm=adapter.use_shm,
            )
            await sender.async_send_weights(iter(weights))
            await taken

        asyncio.run(asyncio.wait_for(send(), CALL_S))

    def sleep(self) -> None:
        """Let the engine sleep as verl does after a rollout."""
        self.do(self.server.sleep())

    def wake(self, tags: list[str]) -> None:
        """Wake parts of the engine as verl's adapter does before and after a sync of weights."""
        asyncio.run(self.adapter.resume(tags))

    def kv_tokens(self) -> int:
        """Return how many tokens the KV cache holds."""
        cache = self.engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks) * int(cache.block_size)

    def close(self) -> None:
        """Shut the engine down; whatever is left of it, the stage ends."""
        engine = getattr(self.server, "engine", None)
        if engine is not None:
            self._loop.call_soon_threadsafe(engine.shutdown)
        time.sleep(0.5)


def _counting(name: str, given: Any, found: dict[str, int]) -> Any:
    async def counting(*args: Any, **kwargs: Any) -> Any:
        found[name] += 1
        return await given(*args, **kwargs)

    return counting


def releases() -> dict[str, Any]:
    """Return which ways the installed verl has, as far as they differ between releases."""
    server = vllm_async_server.vLLMHttpServer
    return {
        "wake_up_takes_tags": "tags" in inspect.signature(server.wake_up).parameters,
        "releases_kv_cache": hasattr(server, "release_kv_cache"),
    }
