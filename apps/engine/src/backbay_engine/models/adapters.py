"""Adapters in a traced step: leaves that tell each token's adapters, and products with their factors."""

from __future__ import annotations

from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Context, Tensor

from ..adapters.stack import AdapterStack, StackedFactors
from ..steps.step import Step, StepAdapters
from .batch import Batch


@final
class TracedAdapters:
    """The adapters of a step while its forward pass is traced.

    `changes` has the names of the matrices that were changed.
    """

    def __init__(self, batch: Batch, stack: AdapterStack, adapters: StepAdapters, outputs: int) -> None:
        self._batch, self._stack, self._outputs = batch, stack, outputs
        self._most, self._count = adapters.most, len(stack.adapters)
        self.changes = set[str]()

    def changed(self, ctx: Context, name: str, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """The product y of a matrix and x, with what adapters add to it."""
        factors = self._stack.factors.get(name)
        if factors is None:
            return y
        columns = x.dim(1) if ids is None else x.dim(2)
        if x.size != x.dim(0) * (columns if ids is None else x.dim(1) * columns):
            raise _unlike(name, x)
        if columns not in (self._batch.size, self._outputs):
            raise _unlike(name, x)
        outputs = self._batch.selected if self._batch.size == self._outputs else columns == self._outputs
        self.changes.add(name)
        if ids is not None:
            return self._of_experts(ctx, factors, x, y, ids, outputs=outputs)
        if factors.beside:
            scales = self._scales(factors.rank, outputs=outputs)  # (rank * adapters, columns)
            narrow = factors.down.mulmat(ctx, x).mul(ctx, scales)
            return y.add(ctx, factors.up.mulmat(ctx, narrow))
        return self._chosen(ctx, factors, x, y, outputs=outputs)

    def _chosen(
        self, ctx: Context, factors: StackedFactors, x: Tensor, y: Tensor, *, outputs: bool
    ) -> Tensor:
        """With the factors that the ids of each token's adapters choose."""
        n, columns = y.dim(0), x.dim(1)
        x = x.reshape(ctx, x.dim(0), 1, columns)
        for number in range(self._most):
            ids, scales = self._choice(number, outputs=outputs)
            narrow = factors.down.mulmat_id(ctx, x, ids).mul(ctx, scales)
            y = y.add(ctx, factors.up.mulmat_id(ctx, narrow, ids).reshape(ctx, n, columns))
        return y

    def _of_experts(
        self, ctx: Context, factors: StackedFactors, x: Tensor, y: Tensor, ids: Tensor, *, outputs: bool
    ) -> Tensor:
        """The same experts' factors of all adapters, of which each token's scales choose some."""
        scales = self._scales(factors.rank, outputs=outputs)
        narrow = factors.down.mulmat_id(ctx, x, ids)  # (rank * adapters, used, columns)
        narrow = narrow.mul(ctx, scales.reshape(ctx, scales.dim(0), 1, scales.dim(1)))
        return y.add(ctx, factors.up.mulmat_id(ctx, narrow, ids))

    def _scales(self, rank: int, *, outputs: bool) -> Tensor:
        """The scale of each factor for each token, 0 for those of other adapters, (rank * adapters, columns)."""
        name = f"adapter scales {rank}{' of outputs' if outputs else ''}"
        return self._batch.input(name, partial(_all_scales, rank, self._count, outputs))

    def _choice(self, number: int, *, outputs: bool) -> tuple[Tensor, Tensor]:
        """The place of an adapter of each token, i32 (1, columns), and its scale, (1, 1, columns)."""
        name = f"{number}{' of outputs' if outputs else ''}"
        places = self._batch.input(f"adapters {name}", partial(_places, number, outputs))
        return places, self._batch.input(f"adapter scales of {name}", partial(_scales, number, outputs))


def _unlike(name: str, x: Tensor) -> BackbayError:
    return BackbayError(
        f"an adapter cannot change {name}: the model multiplies it with {list(x.shape)}, no vector of each token"
    )


def _of_step(step: Step, outputs: bool) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    assert step.adapters is not None  # a part of the step's shape
    places, scales = step.adapters.places, step.adapters.scales
    return (places[step.outputs], scales[step.outputs]) if outputs else (places, scales)


def _places(number: int, outputs: bool, step: Step) -> NDArray[np.int32]:
    return _of_step(step, outputs)[0][:, number, None]


def _scales(number: int, outputs: bool, step: Step) -> NDArray[np.float32]:
    return _of_step(step, outputs)[1][:, number, None, None]


def _all_scales(rank: int, count: int, outputs: bool, step: Step) -> NDArray[np.float32]:
    places, scales = _of_step(step, outputs)
    table = np.zeros((len(places), count), np.float32)
    for number in range(places.shape[1]):
        table[np.arange(len(places)), places[:, number]] += scales[:, number]
    return np.repeat(table, rank, axis=1)
