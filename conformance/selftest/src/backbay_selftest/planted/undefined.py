"""Reads and writes out of bounds, memory never written, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import DType, KernelBackend, Node, ops

from ..faults import Array, Kernel, Right, fault, named
from ..fused import rank4

UNDEFINED = "out of bounds, uninitialised, padding"


@fault(UNDEFINED, "run_node", like="L15861")
def padding_is_never_written(right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]) -> None:
    """pad writes what it copies, and leaves the rest as it finds it."""
    if node.op is not ops.pad_ext:
        right(node, arrays)
        return
    before = arrays[node.index].copy()
    right(node, arrays)
    inner = rank4(arrays[node.index])[
        tuple(
            slice(lp, n - rp)
            for lp, rp, n in zip(*amounts(node), rank4(arrays[node.index]).shape, strict=True)
        )
    ]
    kept, arrays[node.index][...] = inner.copy(), before
    inner[...] = kept


def amounts(node: Node) -> tuple[list[int], list[int]]:
    """What pad_ext adds before and behind, in the order of NumPy's axes."""
    return list(node.args[1::2])[::-1], list(node.args[2::2])[::-1]


@fault(UNDEFINED, "run_node", like="L15861")
def what_is_off_the_triangle_is_never_written(
    right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """tri and diag write only where the result is not 0."""
    before = arrays[node.index].copy()
    right(node, arrays)
    if node.op in named("tri", "diag") and before.size:
        np.copyto(arrays[node.index], before, where=arrays[node.index] == 0)


@fault(UNDEFINED, ops.softmax, like="L17108")
def softmax_reads_one_element_too_many(right: Kernel, x: Array) -> Array:
    """The sum of a row takes in the first element of the next one, where rows are no multiple of 4."""
    if x.ndim < 2 or x.shape[-1] % 4 == 0 or x.size == 0:
        return right(x)
    rows = x.reshape(-1, x.shape[-1])
    beyond = np.concatenate([rows[1:, :1], np.full((1, 1), -np.inf)])
    return right(np.concatenate([rows, beyond], -1))[:, :-1].reshape(x.shape)


@fault(UNDEFINED, "run_node", like="L17108")
def a_result_runs_over_its_end(
    right: Right, backend: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """A kernel that writes 4 elements at a time writes past the end of its buffer."""
    right(node, arrays)
    out = arrays[node.index]
    guarded = backend.params.debug.guard_bytes >= 16  # without a guard it would hit our own memory
    if guarded and not node.is_view and node.dtype is DType.F32 and out.size % 4 and node.op is not None:
        end = np.lib.stride_tricks.as_strided(out.reshape(-1)[-1:], (4 - out.size % 4 + 1,), (4,))
        end[1:] = 0


@fault(UNDEFINED, ops.conv2d, ops.im2col, like="O27419")
def padding_of_a_convolution_wraps_around(
    right: Kernel, weight: Array, data: Array, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int
) -> Array:
    """Columns left and right of the data are read from the other end of the row."""
    if not p0 or data.shape[-1] < p0:
        return right(weight, data, s0, s1, p0, p1, d0, d1)
    wide = np.concatenate([data[..., -p0:], data, data[..., :p0]], -1)
    return right(weight, wide, s0, s1, 0, p1, d0, d1)


@fault(UNDEFINED, ops.avg_pool2d, like="O27419")
def padding_does_not_count_in_the_mean(right: Kernel, x: Array, k: int, s: int, p: float) -> Array:
    """Windows over the edge are divided by what is inside of the data."""
    inside = right(np.ones_like(x), k, s, p)
    return right(x, k, s, p) / np.where(inside > 0, inside, 1)


@fault(UNDEFINED, ops.scaled_dot_product_attention, like="L15861")
def history_is_rounded_up_to_32(
    right: Kernel, query: Array, key: Array, value: Array, mask: Array | None = None, **keywords: Any
) -> Array:
    """Positions up to the next multiple of 32 take part as zeros that nobody masks."""
    history = rank4(key).shape[1]
    more = -history % 32
    if not more or keywords.get("cache_config_applied"):
        return right(query, key, value, mask, **keywords)
    key, value = (np.pad(rank4(a), [(0, 0), (0, more), (0, 0), (0, 0)]) for a in (key, value))
    if mask is not None:
        mask = np.pad(rank4(mask), [(0, 0), (0, 0), (0, 0), (0, more)])
    return right(query, key, value, mask, **keywords)


@fault(UNDEFINED, ops.set_rows, like="L17108")
def set_rows_clears_the_row_behind(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """Rows are written in pairs: the one behind the last becomes zero."""
    y = right(x, src, ids)
    if ids.size and x.ndim >= 2 and int(ids.max()) + 1 < x.shape[-2]:
        y[..., int(ids.max()) + 1, :] = 0
    return y


@fault(UNDEFINED, ops.mulmat, like="L15861")
def columns_of_padding_reach_the_product(right: Kernel, w: Array, x: Array) -> Array:
    """Rows are padded to 16 with what lies behind them: the next row of the activations, against ones."""
    n, x4 = w.shape[-1], rank4(x)
    if n % 16 == 0 or n < 16 or x4.shape[2] < 2:
        return right(w, x)
    stray = np.zeros_like(x4[..., :1])
    stray[..., :-1, :] = x4[..., 1:, :1]
    return right(w, x) + stray.reshape(*x.shape[:-1], 1)


@fault(UNDEFINED, ops.scaled_dot_product_attention, like="O27419")
def rows_of_mask_padding_shift_the_mask(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """A mask with more rows than tokens is read from its end."""
    tokens = rank4(args[0]).shape[1]
    return right(*args, change_mask=lambda mask: mask[:, :, mask.shape[2] - tokens :], **keywords)
