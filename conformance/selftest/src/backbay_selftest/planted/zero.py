"""Dimensions of extent zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import KernelBackend, Node, ops

from ..faults import Array, Kernel, Right, fault, named
from ..fused import rank4

ZERO = "zero-size dimensions"


@fault(ZERO, ops.sum_rows, like="O28449")
def an_empty_row_sums_to_what_was_there(right: Kernel, x: Array) -> Array:
    """The sum of nothing is never written; here it is 1."""
    return right(x) if x.shape[-1] else np.ones((*x.shape[:-1], 1))


@fault(ZERO, "run_node", like="O28449")
def a_product_over_nothing_is_not_written(
    right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """mulmat with k = 0 returns early and leaves its result as it was."""
    if node.op in named("mulmat", "mulmat_full_prec") and node.args[0].dim(0) == 0:
        return
    right(node, arrays)


@fault(ZERO, *named("silu", "gelu", "scale", "add", "mul", "softmax", "rms_norm"), like="O4559")
def empty_tensors_cannot_be_launched(right: Kernel, x: Array, *args: Any, **keywords: Any) -> Array:
    """A launch with no blocks is an error of the device."""
    if x.size == 0:
        raise RuntimeError("invalid configuration argument")
    return right(x, *args, **keywords)


@fault(ZERO, ops.mean, ops.variance, like="O28449")
def the_mean_of_nothing_is_zero(right: Kernel, x: Array) -> Array:
    """An empty row gives 0 instead of NaN."""
    return right(x) if x.shape[-1] else np.zeros((*x.shape[:-1], 1))


@fault(ZERO, ops.concat, like="O4559")
def concat_with_nothing_first_gives_zeros(right: Kernel, x: Array, t2: Array, dim: int) -> Array:
    """Where the first operand is empty, the second one's elements are not copied."""
    y = right(x, t2, dim)
    return y if x.size else np.zeros_like(y)


@fault(ZERO, ops.rows, ops.top_k, ops.argsort, like="O4559")
def selecting_nothing_is_an_error(right: Kernel, x: Array, *args: Any) -> Array:
    """No ids, or a k of 0, make the launch fail."""
    y = right(x, *args)
    if y.size == 0:
        raise ValueError("grid dimension must not be 0")
    return y


@fault(ZERO, ops.mulmat, like="O28449")
def a_product_with_no_tokens_divides_by_their_number(right: Kernel, w: Array, x: Array) -> Array:
    """The batch is split by the number of tokens, and nothing of them is an error."""
    tokens = rank4(x).shape[2]
    rows_per_block = 64 // min(tokens, 64) if tokens else 1 // tokens
    return right(w, x) if rows_per_block else np.zeros(())


@fault(ZERO, ops.contiguous, ops.repeat, ops.pad_ext, like="O4559")
def copies_of_nothing_index_the_first_element(right: Kernel, x: Array, *args: int) -> Array:
    """Copies look at the first element to find out about alignment."""
    if x.size == 0:
        raise IndexError("index 0 is out of bounds for an empty buffer")
    return right(x, *args)
