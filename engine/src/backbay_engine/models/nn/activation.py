"""Activations of feed-forwards, with or without a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from backbay import Context, Tensor

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
