"""Feed-forward networks, applied to each token, and their activations, with or without a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias, final

from backbay import Context, Tensor

from .linear import Linear
from .shape import Shape
from .weights import Weights

Activation: TypeAlias = Callable[..., Tensor]
"""(ctx, x) -> activated x; with a gate (ctx, gate, up) -> activated gate times up."""
ActivationName: TypeAlias = Literal["silu", "gelu", "gelu_erf", "relu", "relu_sqr", "tanh"]


def silu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    return x.silu(ctx, up)


def gelu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    return x.gelu(ctx, up)


def gelu_erf(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    y = x.gelu_erf(ctx)
    return y if up is None else y.mul(ctx, up)


def quick_gelu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    return x.quick_gelu(ctx, up)


def relu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    return x.relu(ctx, up)


def relu_sqr(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    y = x.relu(ctx).sqr(ctx)
    return y if up is None else y.mul(ctx, up)


def tanh(ctx: Context, x: Tensor) -> Tensor:
    return x.tanh(ctx)


def capped(ctx: Context, x: Tensor, cap: float) -> Tensor:
    """Numbers between -cap and cap, near 0 unchanged; a cap of 0 changes nothing."""
    return x.scale(ctx, 1 / cap).tanh(ctx).scale(ctx, cap) if cap else x


ACTIVATIONS: Final[dict[ActivationName, Activation]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu_sqr": relu_sqr,
    "tanh": tanh,
}


@final
class GatedFeedForward:
    """down(activation(gate(x)) * up(x)); a file without ffn_gate has gate and up in ffn_up, one after the other."""

    def __init__(self, weights: Weights, shape: Shape, activation: ActivationName = "silu") -> None:
        self.hidden, self.activation = shape.hidden, ACTIVATIONS[activation]
        joint = "ffn_gate.weight" not in weights and weights.extent("ffn_up.weight", 1) == 2 * shape.hidden
        self.gate = None if joint else Linear(weights, "ffn_gate", shape.width, shape.hidden)
        self.up = Linear(weights, "ffn_up", shape.width, (1 + joint) * shape.hidden)
        self.down = Linear(weights, "ffn_down", shape.hidden, shape.width)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        if self.gate is not None:
            gate, up = self.gate(ctx, x), self.up(ctx, x)
        else:
            gate, up = (part.contiguous(ctx) for part in self.up(ctx, x).chunk(ctx, 0, self.hidden))
        return self.down(ctx, self.activation(ctx, gate, up))


@final
class FeedForward:
    """down(activation(up(x)))"""

    def __init__(self, weights: Weights, shape: Shape, activation: ActivationName = "gelu_erf") -> None:
        self.up = Linear(weights, "ffn_up", shape.width, shape.hidden)
        self.down = Linear(weights, "ffn_down", shape.hidden, shape.width)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return self.down(ctx, self.activation(ctx, self.up(ctx, x)))


@final
class SharedExpert:
    """A feed-forward that every token passes beside its experts, weighted by a gate if the file has one."""

    def __init__(self, weights: Weights, width: int, activation: Activation, *, gated: bool) -> None:
        hidden = weights.extent("ffn_up_shexp.weight", 1)
        self.gate = Linear(weights, "ffn_gate_shexp", width, hidden) if gated else None
        self.up = Linear(weights, "ffn_up_shexp", width, hidden)
        self.down = Linear(weights, "ffn_down_shexp", hidden or 1, width)
        self.activation = activation
        self.share = weights.maybe("ffn_gate_inp_shexp.weight", width, 1)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        up = self.up(ctx, x)
        h = self.activation(ctx, up) if self.gate is None else self.activation(ctx, self.gate(ctx, x), up)
        y = self.down(ctx, h)
        return y if self.share is None else y.mul(ctx, self.share.mulmat(ctx, x).sigmoid(ctx))
