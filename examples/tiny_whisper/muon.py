"""Muon in single precision: that of PyTorch multiplies in bfloat16, ten times as slow where processors lack it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, DECAY, ROUNDS = 0.95, 0.01, 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon with adjust_lr_fn="match_rms_adamw"."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("momentum_buffer", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - MOMENTUM)
                update = _orthogonal(weight.grad.lerp(mean, MOMENTUM))
                weight.mul_(1 - group["lr"] * DECAY)
                weight.sub_(update, alpha=group["lr"] * 0.2 * float(max(weight.shape)) ** 0.5)


def _orthogonal(x: Tensor) -> Tensor:
    """Nearly the orthogonal matrix closest to this one, by Newton's and Schulz' iteration."""
    if x.shape[0] > x.shape[1]:
        return _orthogonal(x.T).T
    a, b, c = COEFFICIENTS
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x
