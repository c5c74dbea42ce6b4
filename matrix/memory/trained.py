"""One trained model under verl's FSDP: what it keeps between phases, and what a pass through it takes.

verl 0.9.1 keeps the weights in float32 (`model_dtype`), gathers a bfloat16 copy of one unit at a time (each decoder
layer is one, embedding, last norm and head are the root), reduces gradients in float32 and keeps two float32 moments
a weight (verl/workers/engine/fsdp/transformer_impl.py, verl/workers/config/engine.py). Amounts are of one GPU of the
`gpus` that share the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.memory.activations import TokenBytes, token_bytes
from matrix.memory.constants import Constants
from matrix.memory.phase import Holding, Part
from matrix.memory.shape import Shape
from matrix.memory.tokens import Pass
from matrix.memory.vocabulary import Logits, has_flash_loss, logits
from matrix.memory.workload import Optimizer, Strategy, Training

HALF = 2
"""Bytes of a number that is computed with (bfloat16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An actor or a critic on one GPU. `head` says whether it has an output layer as wide as the vocabulary."""

    shape: Shape
    settings: Training
    gpus: int
    head: bool
    constants: Constants

    @property
    def parameters(self) -> int:
        """Return how many numbers the model holds."""
        return self.shape.parameters if self.head else self.shape.critic_parameters

    @property
    def root(self) -> int:
        """Return how many numbers its root unit holds: all that lies outside of the decoder layers."""
        return self.parameters - self.shape.num_hidden_layers * self.shape.layer_parameters

    @property
    def weights(self) -> float:
        """Return the bytes of its own share of the weights."""
        return self.parameters * self.settings.model_dtype.size / self.gpus

    @property
    def moments(self) -> float:
        """Return the bytes of its own share of the optimizer's states."""
        return self.weights * (2 if self.settings.optimizer is Optimizer.ADAMW else 0)

    def resting(self, *, trained: bool = True) -> Holding:
        """Return what stays on the GPU between phases; before the first update there are no moments."""
        parts = {}
        if not self.settings.param_offload:
            parts[Part.WEIGHTS] = self.weights
        if trained and not self.settings.optimizer_offload:
            parts[Part.OPTIMIZER] = self.moments
        return Holding(parts=parts)

    def inferring(self, one: Pass, *, entropy: bool) -> Holding:
        """Return what a pass without gradients takes, beside what rests: weights that come back, a unit, activations.

        The optimizer's states stay where they are.
        """
        each = self._each(one)
        wide = self._logits(one, entropy=entropy).forward
        body = each.forward * one.tokens
        # The hidden states of the last layer and the logits are there together; the layers' temporaries are gone.
        late = (each.once + 2 * self.shape.hidden_size) * one.tokens
        activations, at_head = (late, wide) if wide + late > body else (body, 0.0)
        return Holding(
            parts={
                **self._returned(optimizer=False),
                Part.GATHERED: self._gathered(),
                Part.ACTIVATIONS: activations,
                Part.LOGITS: at_head,
            }
        )

    def updating(self, one: Pass, *, entropy: bool) -> Holding:
        """Return what an update takes at its worst moment, beside what rests.

        Three moments compete: the head's backward pass, a layer's backward pass, and the optimizer's step.
        """
        moments = (self._at_head(one, entropy=entropy), self._in_layer(one), self._stepping())
        worst = max(moments, key=lambda holding: holding.total)
        return Holding(parts=self._returned(optimizer=True)) + worst

    def _at_head(self, one: Pass, *, entropy: bool) -> Holding:
        """Return the moment at which logits, their gradients and all that the layers kept are there."""
        each = self._each(one)
        return Holding(
            parts={
                Part.GRADIENTS: self._accumulated(one) + (HALF * self.shape.embedding_parameters if self.head else 0),
                Part.GATHERED: self._gathered(),
                Part.ACTIVATIONS: (self._kept(each) + each.once + 2 * self.shape.hidden_size) * one.tokens,
                Part.LOGITS: self._logits(one, entropy=entropy).backward,
            }
        )

    def _in_layer(self, one: Pass) -> Holding:
        """Return the moment at which the last layer is computed again and its gradients are there."""
        each = self._each(one)
        kept = self._kept(each)
        if self.settings.enable_gradient_checkpointing:
            kept += each.layer
        unit = self.shape.layer_parameters
        head = HALF * self.shape.embedding_parameters if self.head else 0
        return Holding(
            parts={
                # A layer's gradients in bfloat16, and the float32 copy that is reduced.
                Part.GRADIENTS: self._accumulated(one) + head + unit * (HALF + 4),
                Part.GATHERED: self._gathered(),
                Part.ACTIVATIONS: (kept + each.backward + 4 * self.shape.head_dim) * one.tokens,
            }
        )

    def _stepping(self) -> Holding:
        """Return the moment of the optimizer's step: all gradients, and its temporaries.

        torch's AdamW steps parameter by parameter for FSDP's flat parameters, and through lists that cover all
        parameters for those of FSDP2 (torch 2.11, torch/optim/adamw.py, torch/distributed/tensor/__init__.py).
        """
        size = self.settings.model_dtype.size
        largest = max(self.root, self.shape.layer_parameters) * size / self.gpus
        temporary = 2 * largest if self.settings.strategy is Strategy.FSDP else self.weights
        if self.settings.optimizer is not Optimizer.ADAMW:
            temporary = 0
        return Holding(parts={Part.GRADIENTS: self.weights, Part.OPTIMIZER: temporary})

    def _returned(self, *, optimizer: bool) -> dict[Part, float]:
        """Return what offloading brings back for a phase."""
        parts: dict[Part, float] = {}
        if self.settings.param_offload:
            parts[Part.WEIGHTS] = self.weights
        if optimizer and self.settings.optimizer_offload:
            parts[Part.OPTIMIZER] = self.moments
        return parts

    def _gathered(self) -> float:
        """Return the bfloat16 copies of the units that are gathered at a time: the root, and a layer.

        FSDP2 gathers into a flat buffer and copies out of it, so the layer is there twice for a moment.
        """
        layers = 2 if self.settings.strategy is Strategy.FSDP2 else 1
        kept = 1 if self.settings.reshard_after_forward else self.shape.num_hidden_layers
        return float(HALF * (self.root + max(layers, kept) * self.shape.layer_parameters))

    def _accumulated(self, one: Pass) -> float:
        """Return the gradients of the passes before this one."""
        return self.weights if one.accumulates else 0.0

    def _kept(self, each: TokenBytes) -> float:
        layer = each.boundary if self.settings.enable_gradient_checkpointing else each.layer
        return self.shape.num_hidden_layers * layer

    def _each(self, one: Pass) -> TokenBytes:
        return token_bytes(self.shape, self.settings.attention, one.tokens // one.sequences)

    def _logits(self, one: Pass, *, entropy: bool) -> Logits:
        if not self.head:
            return Logits(forward=0.0, backward=0.0)
        return logits(
            one.tokens,
            self.shape.vocab_size,
            self.settings,
            self.constants,
            entropy=entropy,
            flash=has_flash_loss(self.settings),
        )
