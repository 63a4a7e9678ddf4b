"""A step as a model sees it: tensors, which each step fills anew."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor

from ..cache.contract import BoundCache
from ..steps.leaves import Leaves
from ..steps.step import Step

FromStep: TypeAlias = Callable[[Step], NDArray[Any]]


@final
class Batch:
    """A step as a model sees it: leaves of a traced step, filled with the data of each step of the same shape."""

    def __init__(self, ctx: Context, step: Step, cache: BoundCache | None) -> None:
        self.cache = cache
        self.size = step.size
        self.selected = False
        """Whether the pass goes on with the outputs alone."""
        self.taps: dict[str, Tensor] = {}
        self._leaves = Leaves(ctx, step, "Model.key")
        self.tokens = self.input("tokens", attrgetter("tokens"))  # i32 (tokens,)
        self.positions = self.input("positions", attrgetter("positions"))  # i32 (tokens,)
        self.outputs = self.input("outputs", attrgetter("outputs"))  # i32 (outputs,)

    def input(self, name: str, function: FromStep, dtype: DType | None = None) -> Tensor:
        """A leaf that each step fills with `function(step)`: i32 for integers, else f32, or `dtype`.

        The leaf's shape is the array's, reversed; it must be the same for all steps of one shape. Asking for a name
        again gives the same leaf.
        """
        return self._leaves.leaf(name, function, dtype)

    def axes(self) -> Tensor:
        """M-RoPE's positions, i32 (4 * tokens,): time, row and column of all tokens, and an axis that is always 0."""
        return self.input("axes", _axes)

    def mix(self, ctx: Context, x: Tensor) -> Tensor:
        """The embeddings of the tokens, (width, tokens), and rows of pictures in place of those that they replace.

        A step without pictures traces nothing for them.
        """
        if self._leaves.data.rows is None:
            return x
        rows = self.input("rows", lambda step: _rows_of(step, 0, x.dim(0)))  # (width, room)
        sources = self.input("sources", _sources)  # i32 (tokens,)
        return x.concat(ctx, rows, 1).rows(ctx, sources)

    def further(self, ctx: Context, number: int, width: int) -> Tensor | None:
        """A further vector of pictures' rows for each token, (width, tokens), from 1; zeros for tokens without a row.

        None: the step has no pictures, or their rows have no such vector.
        """
        step = self._leaves.data
        if step.rows is None or step.rows.values.shape[1] < (number + 1) * width:
            return None
        rows = self.input(
            f"rows.{number}", lambda step: _rows_of(step, number, width, 1)
        )  # (width, 1 + room)
        return rows.rows(ctx, self.input("row numbers", _row_numbers))

    def select(self, ctx: Context, x: Tensor) -> Tensor:
        """The columns of the outputs, (n, outputs) of (n, tokens): the rest of the model can skip the other tokens.

        Traced even if all tokens are outputs: graphs that differ only in sizes may share a plan.
        """
        self.selected = True
        return x.rows(ctx, self.outputs)

    def tap(self, name: str, x: Tensor) -> Tensor:
        """Name an intermediate tensor, such as a block's output, so that errors can be located."""
        self.taps[name] = x
        return x

    def fill(self, step: Step) -> None:
        """Fill the leaves with the data of another step of the same shape."""
        self._leaves.fill(step)


def _axes(step: Step) -> NDArray[np.int32]:
    axes = np.zeros((4, step.size), np.int32)
    axes[:3] = step.positions if step.axes is None else step.axes
    return axes.reshape(-1)


def _rows_of(step: Step, number: int, width: int, zeros: int = 0) -> NDArray[np.float32]:
    """The rows' vector of this number, behind so many zeros."""
    assert step.rows is not None  # a part of the step's shape
    values = step.rows.values[:, number * width : (number + 1) * width]
    padded = np.zeros((zeros + step.rows.room, width), np.float32)
    padded[zeros : zeros + len(values)] = values
    return padded


def _row_numbers(step: Step) -> NDArray[np.int32]:
    """Where each token's further vector is, 0 for tokens that have no row."""
    assert step.rows is not None
    numbers = np.zeros(step.size, np.int32)
    numbers[step.rows.tokens] = 1 + np.arange(len(step.rows.tokens))
    return numbers


def _sources(step: Step) -> NDArray[np.int32]:
    """Where each token's vector is among the embeddings, which the rows follow."""
    assert step.rows is not None
    sources = np.arange(step.size, dtype=np.int32)
    sources[step.rows.tokens] = step.size + np.arange(len(step.rows.tokens))
    return sources
