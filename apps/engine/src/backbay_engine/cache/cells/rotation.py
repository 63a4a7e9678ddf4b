"""The rotation of heads that are stored in 4 bits: a few large features of a head become many of middle size."""

from __future__ import annotations

from math import gcd
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor

ROTATED = frozenset({DType.Q4_0})
"""The dtypes of caches whose keys and values are rotated before they are rounded."""
LARGEST = 128  # features of a matrix: its products cost as much for each feature


@final
class HeadRotation:
    """A product of each block of features with one matrix, which is symmetric and orthogonal: twice gives the vector back.

    Products of rotated queries and keys are those of the queries and keys. In a mean of rotated values, the mean is
    rotated.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    @classmethod
    def of(cls, ctx: Context, head_dim: int, value_dim: int) -> HeadRotation:
        """The rotation of heads of two lengths, with a matrix in `ctx`."""
        return cls(ctx.from_floats(rotation_matrix(block_of(head_dim, value_dim))))

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        """The rotated vectors of any shape, (features, ...)."""
        whole = x if x.strides is None else x.contiguous(ctx)
        blocks = whole.reshape(ctx, self.matrix.dim(0), -1)
        return self.matrix.mulmat(ctx, blocks).reshape(ctx, *x.shape)


def block_of(head_dim: int, value_dim: int) -> int:
    """The largest power of two, at most LARGEST, that divides both lengths."""
    return gcd(head_dim, value_dim, LARGEST)


def rotation_matrix(size: int) -> NDArray[np.float32]:
    """A Hadamard matrix with the signs of Rudin and Shapiro's sequence in its rows and columns; `size` is a power of two.

    All elements have one magnitude, so that a single large feature is spread over all. Because of the signs, equal
    features are spread, too: without them, the first row would gather them.
    """
    rows, signs, others = np.ones((1, 1)), np.ones(1), np.ones(1)
    while len(rows) < size:
        rows = np.block([[rows, rows], [rows, -rows]])
        signs, others = np.concatenate([signs, others]), np.concatenate([signs, -others])
    return (signs[:, None] * rows * signs / np.sqrt(size)).astype(np.float32)
