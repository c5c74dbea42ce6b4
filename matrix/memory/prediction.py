"""The prediction: what one GPU holds in each phase of a step, which rules that must obey, and which one it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from matrix.memory.constants import Constants, constants
from matrix.memory.engine import Engine
from matrix.memory.passes import actor_pass, budgets, critic_pass, update_pass
from matrix.memory.phase import GIB, Holding, Part, Phase
from matrix.memory.runner import CURRENT
from matrix.memory.trained import Trained
from matrix.memory.workload import Attention, Forward, Strategy, Training, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An inequality that must hold: `need` is at most `have`, both in bytes (or in what `unit` says)."""

    name: str
    phase: Phase
    need: float
    have: float
    unit: str = "bytes"

    @property
    def holds(self) -> bool:
        """Return whether it does."""
        return self.need <= self.have

    @property
    def slack(self) -> float:
        """Return how much of what there is stays free, as a fraction; negative where it is broken."""
        return (self.have - self.need) / self.have if self.have > 0 else -1.0

    @property
    def text(self) -> str:
        """Return the inequality as a line: what is needed, what there is."""
        need, have = (
            (f"{self.need / GIB:.2f} GiB", f"{self.have / GIB:.2f} GiB")
            if self.unit == "bytes"
            else (f"{self.need:,.0f} {self.unit}", f"{self.have:,.0f} {self.unit}")
        )
        return f"{self.phase.value}: {self.name}: {need} {'<=' if self.holds else '>'} {have}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a workload holds on one card of `total` bytes, phase by phase, and the rules that decide whether it fits."""

    workload: Workload
    total: int
    phases: Mapping[Phase, Holding]
    rules: tuple[Rule, ...]
    engine: Engine = field(repr=False)

    @property
    def fits(self) -> bool:
        """Return whether every rule holds."""
        return all(rule.holds for rule in self.rules)

    @property
    def binding(self) -> Rule:
        """Return the rule with the least slack: the one that is broken most, or, of memory, the one to break next."""
        broken = [rule for rule in self.rules if not rule.holds]
        return min(broken or [rule for rule in self.rules if rule.unit == "bytes"], key=lambda rule: rule.slack)

    @property
    def peak(self) -> Phase:
        """Return the phase that holds the most."""
        return max(self.phases, key=lambda phase: self.phases[phase].total)

    @property
    def headroom(self) -> float:
        """Return what stays free at the peak, in bytes; negative where it does not fit."""
        return self.total - self.phases[self.peak].total


def predict(
    workload: Workload,
    total: int,
    *,
    given: Constants | None = None,
    vllm: str = CURRENT,
    flash_loss: bool | None = None,
) -> Prediction:
    """Return what the workload holds on a card of `total` bytes, in the second step or later.

    `given` are constants other than those of this release; `vllm` is its release; `flash_loss` says whether
    flash-attn's cross-entropy is there (None: where its attention is used it must be).
    """
    made = _Model(workload, total, given or constants(), vllm, flash_loss)
    phases = dict(made.phases())
    return Prediction(
        workload=workload,
        total=total,
        phases=phases,
        rules=tuple(made.rules(phases)),
        engine=made.engine,
    )


class _Model:
    """The parts of a workload on one GPU, and what they hold together in each phase."""

    def __init__(self, workload: Workload, total: int, given: Constants, vllm: str, flash_loss: bool | None) -> None:
        self.workload = workload
        self.total = total
        self.constants = given
        by_attention = workload.actor.attention is Attention.FLASH_2
        self.flash_loss = by_attention if flash_loss is None else flash_loss
        self.engine = Engine(workload=workload, total=total, constants=given, release=vllm)
        self.actor = self._trained(workload.actor, head=True)
        self.critic = self._trained(workload.critic, head=False) if workload.critic is not None else None

    def phases(self) -> Iterator[tuple[Phase, Holding]]:
        """Yield each phase that the workload has, with what it holds."""
        load = self.workload
        yield Phase.ROLLOUT_INIT, self._with(self._resting(trained=False), self.engine.awake())
        yield Phase.WAKE_UP, self._with(self._resting() + self._syncing(), self.engine.weighing())
        yield Phase.GENERATION, self._with(self._resting(), self.engine.awake())
        asleep = self.engine.asleep()
        old = self.actor.inferring(actor_pass(load, load.log_prob), entropy=True)
        yield Phase.OLD_LOG_PROB, self._with(self._resting() + old, asleep)
        if load.reference is not None:
            yield Phase.REF_LOG_PROB, self._with(self._resting() + self._referring(load.reference), asleep)
        if self.critic is not None:
            one = critic_pass(load, update=False)
            yield Phase.VALUES, self._with(self._resting() + self.critic.inferring(one, entropy=False), asleep)
            update = self.critic.updating(critic_pass(load, update=True), entropy=False)
            yield Phase.CRITIC_UPDATE, self._with(self._resting() + update, asleep)
        update = self.actor.updating(update_pass(load), entropy=load.actor.needs_entropy)
        yield Phase.ACTOR_UPDATE, self._with(self._resting() + update, asleep)

    def rules(self, phases: Mapping[Phase, Holding]) -> Iterator[Rule]:
        """Yield every inequality that has to hold."""
        engine = self.engine
        before = self._with(self._resting(trained=False), Holding(parts={})).total
        free = self.total - before - self.constants.engine_context_bytes
        init = Phase.ROLLOUT_INIT
        yield Rule(name="vLLM's share is free at start-up", phase=init, need=engine.requested, have=free)
        room = max(engine.available, 0.0)
        yield Rule(name="one sequence of max_model_len in the KV cache", phase=init, need=engine.needed, have=room)
        load = self.workload
        rollout = load.rollout
        yield Rule(
            name="max_num_seqs within max_num_batched_tokens",
            phase=init,
            need=rollout.max_num_seqs,
            have=rollout.max_num_batched_tokens,
            unit="tokens",
        )
        yield Rule(
            name="a sequence within max_model_len", phase=init, need=load.length, have=load.max_model_len, unit="tokens"
        )
        yield Rule(
            name="max_model_len within the model's own",
            phase=init,
            need=load.max_model_len,
            have=load.shape.max_position_embeddings,
            unit="tokens",
        )
        for key, budget in budgets(load):
            yield Rule(name=key, phase=Phase.ACTOR_UPDATE, need=load.length, have=budget, unit="tokens")
        for phase, holding in phases.items():
            if phase is not init:
                yield Rule(name="everything on the card", phase=phase, need=holding.total, have=self.total)

    def _trained(self, settings: Training, *, head: bool) -> Trained:
        return Trained(
            shape=self.workload.shape,
            settings=settings,
            gpus=self.workload.n_gpus,
            head=head,
            flash_loss=self.flash_loss,
            constants=self.constants,
        )

    def _resting(self, *, trained: bool = True) -> Holding:
        held = self.actor.resting(trained=trained)
        return held + self.critic.resting(trained=trained) if self.critic is not None else held

    def _syncing(self) -> Holding:
        """Return what sending the weights takes: the bucket, the weights if they were away, and FSDP's full copy.

        FSDP's state dict is gathered whole and in float32; FSDP2's parameters one by one
        (verl 0.9.1, get_per_tensor_param; workers/rollout/vllm_rollout/bucketed_weight_transfer.py).
        """
        settings = self.workload.actor
        size = self.workload.shape.parameters * settings.model_dtype.size
        gathered = size if settings.strategy is Strategy.FSDP else 2.0 * self.workload.shape.embedding_parameters * 4
        own = self.actor.weights if settings.param_offload and settings.strategy is Strategy.FSDP else 0.0
        bucket = float(self.workload.rollout.update_weights_bucket_megabytes << 20)
        return Holding(parts={Part.WEIGHTS: own, Part.SYNC: bucket + gathered})

    def _referring(self, forward: Forward) -> Holding:
        """Return what the reference takes: its weights lie in host memory, and each unit comes when it is needed."""
        found = dict(self.actor.inferring(actor_pass(self.workload, forward), entropy=False).parts)
        found.pop(Part.WEIGHTS, None)
        unit = max(self.actor.root, self.workload.shape.layer_parameters) * self.workload.actor.model_dtype.size
        return Holding(parts={**found, Part.WEIGHTS: unit / self.workload.n_gpus})

    def _with(self, training: Holding, engine: Holding) -> Holding:
        """Return the training process with its context and its allocator's overhead, and the engine beside it."""
        workspace = self.constants.trainer_workspace_bytes
        allocated = training.allocated + workspace
        own = Holding(
            parts={
                Part.CONTEXT: self.constants.trainer_context_bytes + self.constants.trainer_other_bytes,
                Part.WORKSPACE: workspace,
                Part.OVERHEAD: self.constants.allocator_overhead * allocated,
            }
        )
        return own + training + engine
