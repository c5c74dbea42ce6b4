"""Sections about devices that do not fit: what FSDP1 and FSDP2 make of a model of which something lies elsewhere."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import trainer_world as world
from kit.sections import section
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import Shard, distribute_tensor

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import CPUOffloadPolicy, fully_shard


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """A layer whose output is multiplied by a buffer, once it has one."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output, scaled."""
        out = self.layer(*args, **kwargs)
        return out * self.scale if hasattr(self, "scale") else out


def _fsdp1(made: torch.nn.Module, **kwargs: Any) -> torch.nn.Module:
    return FullyShardedDataParallel(made, use_orig_params=True, **kwargs)


def _fsdp2(made: torch.nn.Module, mesh: Any, **kwargs: Any) -> torch.nn.Module:
    for layer in made.model.layers:
        fully_shard(layer, mesh=mesh, **kwargs)
    fully_shard(made, mesh=mesh, **kwargs)
    return made


def _with_late_buffer(made: torch.nn.Module) -> torch.nn.Module:
    """Return the model with a head whose output is scaled by a buffer that it does not have yet."""
    made.lm_head = Scaled(made.lm_head)
    return made


def _scale(made: torch.nn.Module, device: str) -> torch.nn.Module:
    """Return the model once its head has the buffer, on `device`."""
    for part in made.modules():
        if isinstance(part, Scaled):
            part.register_buffer("scale", torch.ones(512, device=device), persistent=False)
    return made


def sound(device: str, mesh: Any) -> None:
    """Take a step where everything is where it should be: the counterpart of each section below."""
    here = torch.device(device)
    with section("sound-plain") as out:
        out["loss"] = world.step(world.model().to(device), device)
    with section("sound-fsdp1") as out:
        out["loss"] = world.step(_fsdp1(world.model(), device_id=here, sync_module_states=True), device)
    with section("sound-fsdp2") as out:
        # From the CPU on purpose: FSDP2 itself moves what it manages to the device of its mesh.
        made = _fsdp2(world.model(), mesh)
        out["devices"] = sorted({str(one.device) for one in made.parameters()})
        out["loss"] = world.step(made, device)
    with section("sound-fsdp2-offload") as out:
        made = _fsdp2(world.model(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=device != "cpu"))
        out["devices"] = sorted({str(one.device) for one in made.parameters()})
        out["loss"] = world.step(made, device)
    with section("sound-fsdp1-late-buffer") as out:
        made = _stepped(_fsdp1(_with_late_buffer(world.model()), device_id=here), device)
        out["loss"] = world.step(_scale(made, device), device)
    with section("sound-fsdp2-late-buffer") as out:
        made = _stepped(_fsdp2(_with_late_buffer(world.model()), mesh), device)
        out["loss"] = world.step(_scale(made, device), device)
    with section("fsdp1-buffer-before-the-first-step") as out:
        # Its first step moves every buffer that there is by then.
        made = _scale(_fsdp1(_with_late_buffer(world.model()), device_id=here), "cpu")
        out["loss"] = world.step(made, device)
    with section("sound-fsdp2-meta") as out:
        with torch.device("meta"):
            made = world.model()
        made = _fsdp2(made, mesh).to_empty(device=device)
        _fill(made, device)
        out["loss"] = world.step(made, device)


def _stepped(made: torch.nn.Module, device: str) -> torch.nn.Module:
    """Return the model after its first step, with which FSDP settles what lies where."""
    world.step(made, device)
    made.zero_grad()
    return made


def _fill(made: torch.nn.Module, device: str) -> None:
    """Give a model that was materialised empty the weights and buffers of a real one."""
    real = world.model().to(device)
    values = dict(real.named_buffers()) | dict(real.named_parameters())
    with torch.no_grad():
        for name, held in [*made.named_parameters(), *made.named_buffers()]:
            (held.to_local() if hasattr(held, "to_local") else held).copy_(values[name])


def elsewhere(device: str, mesh: Any) -> None:
    """Leave a model, or a part of it, where the step is not."""
    here = torch.device(device)
    with section("plain-left-on-cpu") as out:
        out["loss"] = world.step(world.model(), device)
    with section("fsdp1-left-on-cpu") as out:
        out["loss"] = world.step(_fsdp1(world.model()), device)
    with section("fsdp1-sync-on-cpu") as out:
        out["loss"] = world.step(_fsdp1(world.model(), sync_module_states=True), device)
    with section("fsdp2-left-on-meta") as out:
        with torch.device("meta"):
            made = world.model()
        out["loss"] = world.step(_fsdp2(made, mesh), device)
    with section("fsdp1-late-buffer") as out:
        made = _stepped(_fsdp1(_with_late_buffer(world.model()), device_id=here), device)
        out["loss"] = world.step(_scale(made, "cpu"), device)
    with section("fsdp2-late-buffer") as out:
        made = _stepped(_fsdp2(_with_late_buffer(world.model()), mesh), device)
        out["loss"] = world.step(_scale(made, "cpu"), device)
    with section("rotary-left-on-cpu") as out:
        made = world.model().to(device)
        rotary = made.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq.cpu()
        out["loss"] = world.step(made, device)


def offload(device: str, mesh: Any) -> None:
    """Move what CPUOffloadPolicy keeps on the CPU, and give a mesh tensors of another."""
    with section("fsdp2-offload-moved") as out:
        made = _fsdp2(world.model(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=device != "cpu")).to(device)
        out["devices"] = sorted({str(one.device) for one in made.parameters()})
        out["loss"] = world.step(made, device)
    with section("fsdp2-offload-state-dict") as out:
        made = _fsdp2(world.model(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=device != "cpu")).to(device)
        out["tensors"] = len(made.state_dict())
    with section("fsdp2-cpu-mesh") as out:
        made = _fsdp2(world.model().to(device), init_device_mesh("cpu", (1,)))
        out["devices"] = sorted({str(one.device) for one in made.parameters()})
        out["loss"] = world.step(made, device)
    with section("fsdp2-mesh-of-another-device") as out:
        made = world.model()
        weight = made.lm_head.weight.detach()
        made.lm_head.weight = torch.nn.Parameter(distribute_tensor(weight, init_device_mesh("cpu", (1,)), [Shard(0)]))
        out["loss"] = world.step(_fsdp2(made, mesh), device)


def collectives(device: str) -> None:
    """Reduce tensors that are not where the group's backend works."""
    with section("nccl-all-reduce-cpu-tensor") as out:
        if device == "cpu":
            raise RuntimeError("there is no NCCL here")
        group = dist.new_group(backend="nccl")
        dist.all_reduce(torch.ones(3), group=group)
        out["done"] = True
    with section("gloo-all-reduce-gpu-tensor") as out:
        group = dist.new_group(backend="gloo")
        values = torch.ones(3, device=device)
        dist.all_reduce(values, group=group)
        out["values"] = values.tolist()


def run(device: str) -> None:
    """Run every section about devices; `device` is where the step is."""
    mesh = init_device_mesh(device.partition(":")[0], (1,))
    sound(device, mesh)
    elsewhere(device, mesh)
    offload(device, mesh)
    collectives(device)
