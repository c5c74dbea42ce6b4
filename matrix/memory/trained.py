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
from matrix.memory.vocabulary import Logits, logits
from matrix.memory.workload import Optimizer, Strategy, Training

HALF = 2
"""Bytes of a number that is computed with (bfloat16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An actor or a critic on one GPU.

    `head` says whether it has an output layer as wide as the vocabulary, `flash_loss` whether flash-attn computes its
    cross-entropy.
    """

    shape: Shape
    settings: Training
    gpus: int
    head: bool
    flash_loss: bool
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
        returned = Holding(parts=self._returned(optimizer=False))
        in_layer = Holding(parts={Part.GATHERED: self._gathered(1), Part.ACTIVATIONS: each.forward * one.tokens})
        # At the head the layers' temporaries are gone; the last hidden states are there.
        late = 2 * self.shape.hidden_size
        at_head = Holding(
            parts={
                Part.GATHERED: float(HALF * self.root),
                Part.ACTIVATIONS: float(late * one.tokens),
                Part.LOGITS: self._logits(one, entropy=entropy).forward,
            }
        )
        copied = Holding(parts={Part.GATHERED: float(2 * HALF * self.root)})
        moments = [in_layer, at_head, *([copied] if self._fsdp2 else [])]
        return returned + max(moments, key=lambda holding: holding.total)

    def updating(self, one: Pass, *, entropy: bool) -> Holding:
        """Return what an update takes at its worst moment, beside what rests.

        Four moments compete: the head's backward pass, a layer's, the root unit's, and the optimizer's step.
        """
        moments = (
            self.at_head(one, entropy=entropy),
            *self.in_layer(one),
            self.at_root(one),
            self._stepping(),
        )
        worst = max(moments, key=lambda holding: holding.total)
        return Holding(parts=self._returned(optimizer=True)) + worst

    def at_head(self, one: Pass, *, entropy: bool) -> Holding:
        """Return the moment at which logits, their gradients and all that the layers kept are there."""
        each = self._each(one)
        return Holding(
            parts={
                Part.GRADIENTS: self._accumulated(one) + self._head_gradient,
                # FSDP gathers the last layer while the head's gradient is computed.
                Part.GATHERED: self._gathered(0 if self._fsdp2 else 1),
                Part.ACTIVATIONS: (self._kept(each) + each.once + 2 * self.shape.hidden_size) * one.tokens,
                Part.LOGITS: self._logits(one, entropy=entropy).backward,
            }
        )

    def in_layer(self, one: Pass) -> tuple[Holding, ...]:
        """Return the moments at which a layer has been computed again and the gradients of its MLP are there.

        At the last layer all hold what they kept; at the first all others have left their gradients. In between FSDP2
        still reduces those of the layer before.
        """
        each = self._each(one)
        checkpointed = self.settings.enable_gradient_checkpointing
        passing = (each.layer if checkpointed else 0.0) + each.backward + 4 * self.shape.head_dim
        kept = each.boundary if checkpointed else each.layer
        layer, layers = self.shape.layer_parameters, self.shape.num_hidden_layers
        done = self._accumulated(one)
        left = done or (layers - 1) * layer * self.settings.model_dtype.size / self.gpus
        pending = 4 * layer if self._fsdp2 else 0

        def at(holding: int, gradients: float, gathered: int) -> Holding:
            # The gradient of the MLP's last matrix is there, in bfloat16.
            fresh = self._head_gradient + HALF * self.shape.hidden_size * self.shape.intermediate_size
            return Holding(
                parts={
                    Part.GRADIENTS: gradients + fresh,
                    Part.GATHERED: self._gathered(gathered),
                    Part.ACTIVATIONS: (holding * kept + passing) * one.tokens,
                }
            )

        ahead = 1 if self._fsdp2 else 2
        return at(layers, done, ahead), at(layers - 1, done + pending, ahead), at(1, left + pending, 1)

    def at_root(self, one: Pass) -> Holding:
        """Return the moment at which the gradients of embedding and head are put together; activations are gone.

        Counted on real FSDP units (tests/accuracy/memory_counted.py): FSDP holds the gradients of the root's parameters
        and the flat one made of them beside the gathered weights, a tied head its own, the embedding's and their sum;
        FSDP2 a float32 input and output of the reduction.
        """
        size = self.settings.model_dtype.size / self.gpus
        layers = self.shape.num_hidden_layers * self.shape.layer_parameters
        done = layers * size + (self.root * size if one.accumulates else 0)
        tied = self.head and self.shape.tie_word_embeddings
        copies = 3 * HALF * self.shape.embedding_parameters if tied else 2 * HALF * self.root
        # FSDP2 still reduces the first layer's while the root's are summed up.
        pending = 4 * self.shape.layer_parameters if self._fsdp2 and tied else 0
        summed = Holding(parts={Part.GRADIENTS: done + copies + pending, Part.GATHERED: float(HALF * self.root)})
        if not self._fsdp2:
            return summed
        reduced = Holding(parts={Part.GRADIENTS: done + 8 * self.root})
        return max(summed, reduced, key=lambda holding: holding.total)

    def _stepping(self) -> Holding:
        """Return the moment of the optimizer's step: all gradients, and AdamW's temporaries.

        torch's AdamW steps on CUDA through lists over all parameters, FSDP's flat ones included, and takes the square
        root of all second moments at once (torch 2.11, optim/adam.py: _multi_tensor_adam).
        """
        temporary = self.weights if self.settings.optimizer is Optimizer.ADAMW else 0.0
        return Holding(parts={Part.GRADIENTS: self.weights, Part.OPTIMIZER: temporary})

    @property
    def _head_gradient(self) -> float:
        """Return the gradient of the output layer, which stays until the root's is put together."""
        return float(HALF * self.shape.embedding_parameters) if self.head else 0.0

    def _returned(self, *, optimizer: bool) -> dict[Part, float]:
        """Return what offloading brings back for a phase."""
        parts: dict[Part, float] = {}
        if self.settings.param_offload:
            parts[Part.WEIGHTS] = self.weights
        if optimizer and self.settings.optimizer_offload:
            parts[Part.OPTIMIZER] = self.moments
        return parts

    def _gathered(self, layers: int) -> float:
        """Return the bfloat16 copies of the units that are gathered: the root, and so many layers."""
        if not self.settings.reshard_after_forward:
            layers = self.shape.num_hidden_layers
        return float(HALF * (self.root + layers * self.shape.layer_parameters))

    @property
    def _fsdp2(self) -> bool:
        return self.settings.strategy is Strategy.FSDP2

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
            flash=self.flash_loss,
        )
