"""The form of keys in quantized caches: without their mean, and rotated, so that no feature is much larger than others."""

from __future__ import annotations

from math import gcd
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Context, DType, Tensor

ROTATED = frozenset({DType.Q8_0, DType.Q4_0})
"""The dtypes of caches whose keys are rotated before they are rounded."""
LARGEST = 128  # features of a matrix: its products cost as much for each feature


@final
class KeyRotation:
    """A product of each block of features with one matrix, which is symmetric and orthogonal: twice gives the vector back.

    Products of rotated queries and keys are those of the queries and keys. Keys may lose one vector first, the same for
    all: it adds one number to all scores of a query, which softmax ignores.
    """

    def __init__(self, ctx: Context, head_dim: int, kv_heads: int) -> None:
        self._matrix = ctx.from_floats(rotation_matrix(block_of(head_dim)))
        self._mean = ctx.zeros(DType.F32, head_dim, kv_heads, 1)
        self._is_centred = self._keeps_scores = False

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        """Vectors of any shape, (features, ...), rotated, or back."""
        whole = x if x.strides is None else x.contiguous(ctx)
        blocks = whole.reshape(ctx, self._matrix.dim(0), -1)
        return self._matrix.mulmat(ctx, blocks).reshape(ctx, *x.shape)

    def store(self, ctx: Context, key: Tensor) -> Tensor:
        """Keys as they are stored, (head_dim, kv_heads, n)."""
        return self(ctx, key.sub(ctx, self._mean))

    def restore(self, ctx: Context, stored: Tensor) -> Tensor:
        """Stored keys as they were, (head_dim, kv_heads, n)."""
        return self(ctx, stored).add(ctx, self._mean)

    def keep_scores(self) -> None:
        """Let keys keep their mean, because scores meet a sink or a cap."""
        if self._is_centred:
            raise BackbayError("keys have lost their mean: no sinks and no softcap can follow")
        self._keeps_scores = True

    def centre(self, mean: NDArray[np.float32]) -> None:
        """Let keys lose this vector, (kv_heads, head_dim), from now on; no key may be stored yet."""
        if not self._keeps_scores and np.isfinite(mean).all():
            self._mean.from_floats(mean)
            self._is_centred = True


def block_of(head_dim: int) -> int:
    """The largest power of two, at most LARGEST, that divides the length of a head."""
    return gcd(head_dim, LARGEST)


def rotation_matrix(size: int) -> NDArray[np.float32]:
    """A Hadamard matrix with the signs of Rudin and Shapiro's sequence in its rows and columns; `size` is a power of two.

    All elements have one magnitude, so that a single large feature is spread over all. Because of the signs, equal
    features are spread, too: without them, the first row would gather them.
    """
    rows, signs, others = np.ones((1, 1)), np.ones(1), np.ones(1)
    while len(rows) < size:
        rows = np.block([[rows, rows], [rows, -rows]])
        signs, others = np.concatenate([signs, others]), np.concatenate([signs, -others])
    return np.asarray(signs[:, None] * rows * signs / np.sqrt(size), np.float32)
