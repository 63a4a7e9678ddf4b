"""Feed-forward networks, applied to each token."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

from backbay import Context, Tensor

from .linear import Linear
from .shape import Shape
from .weights import Weights

Gate: TypeAlias = Literal["silu", "gelu"]


@final
class GatedFeedForward:
    """down(activation(gate(x)) * up(x))"""

    def __init__(self, weights: Weights, shape: Shape, activation: Gate = "silu") -> None:
        self.gate = Linear(weights, "ffn_gate", shape.width, shape.hidden)
        self.up = Linear(weights, "ffn_up", shape.width, shape.hidden)
        self.down = Linear(weights, "ffn_down", shape.hidden, shape.width)
        self.activation = activation

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        gate, up = self.gate(ctx, x), self.up(ctx, x)
        return self.down(ctx, gate.silu(ctx, up) if self.activation == "silu" else gate.gelu(ctx, up))


@final
class FeedForward:
    """down(gelu(up(x))), with gelu in its exact form"""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        self.up = Linear(weights, "ffn_up", shape.width, shape.hidden)
        self.down = Linear(weights, "ffn_down", shape.hidden, shape.width)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return self.down(ctx, self.up(ctx, x).gelu_erf(ctx))
