"""Kernels of the root mean square norm, right and wrong, that another process can import."""

import os

import numpy as np

from backbay_conformance import HostArray


def right(x, weight=None, eps=1e-5):
    wide = x.astype(np.float32)
    y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return (y if weight is None else y * weight).astype(x.dtype)


def eps_outside(x, weight=None, eps=1e-5):
    wide = x.astype(np.float32)
    y = wide / (np.sqrt((wide * wide).mean(-1, keepdims=True)) + eps)
    return (y if weight is None else y * weight).astype(x.dtype)


def eps_at_most_five(x, weight=None, eps=1e-5):
    return right(x, weight, min(eps, 5.0))


def narrow_sums(x, weight=None, eps=1e-5):
    square = (x.astype(np.float16) ** 2).mean(-1, keepdims=True, dtype=np.float16)
    y = x / np.sqrt(square.astype(np.float32) + eps)
    return (y if weight is None else y * weight).astype(x.dtype)


def tail_left_out(x, weight=None, eps=1e-5):
    wide = x.astype(np.float32)
    tiled = max(1, x.shape[-1] // 4 * 4)
    y = wide / np.sqrt((wide[..., :tiled] ** 2).sum(-1, keepdims=True) / x.shape[-1] + eps)
    return (y if weight is None else y * weight).astype(x.dtype)


def stride_ignored(x, weight=None, eps=1e-5):
    dense = np.empty(x.shape, x.dtype).strides
    return right(np.lib.stride_tricks.as_strided(x, strides=dense), weight, eps)


def operand_changed(x, weight=None, eps=1e-5):
    result = right(x, weight, eps)
    x[...] = 0
    return result


def wide_result(x, weight=None, eps=1e-5):
    return right(x.astype(np.float32), weight, eps)


def ends_its_process(x, weight=None, eps=1e-5):
    os._exit(3)


def other_parameters(x, eps):
    return x


def offset_ignored(operand: HostArray):
    return np.lib.stride_tricks.as_strided(operand.storage, operand.shape, operand.array.strides)


def copied(operand: HostArray):
    """The operand in memory of its own, as on a device, with its strides and offset."""
    storage = operand.storage.copy()
    return np.ndarray(
        operand.shape, storage.dtype, storage, operand.offset * storage.itemsize, operand.array.strides
    )
