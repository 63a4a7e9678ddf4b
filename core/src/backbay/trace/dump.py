"""Tensors as text, for debugging."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..data.encoding import Array, flat_numbers
from .tensor import Tensor


def dump(tensor: Tensor, precision: int = 4, threshold: int = 1000, edge_items: int = 3) -> str:
    """A tensor's elements in nested brackets, the last dimension outermost; floats with `precision` decimals.

    If there are more than `threshold` elements, only `edge_items` at both ends of each dimension are shown. Half and
    quantized types are shown as floats. A tensor without a result is computed, with its ancestors; if one of them
    writes, NotComputedError is raised instead.
    """
    if tensor.home is None or tensor.leaf is not None or tensor.home.has_result(tensor):
        values = tensor.numpy().reshape(-1)
    else:
        values = flat_numbers(tensor.home.evaluate(tensor), tensor.dtype).reshape(-1)
    shape = tensor.shape[::-1] or (1,)
    edge = edge_items if tensor.size > threshold else tensor.size
    return _brackets(values, shape, 0, edge, precision, depth=1)


def _brackets(
    values: Array, shape: tuple[int, ...], start: int, edge: int, precision: int, *, depth: int
) -> str:
    """The text of one dimension, from the element `start` on, with all inner dimensions."""
    count, *inside = shape
    step, line = prod(inside), "\n" * len(inside) + " " * depth if inside else " "
    text, elided = "", count > 2 * edge
    for i in (*range(edge), *range(count - edge, count)) if elided else range(count):
        if elided and i == count - edge:
            text += "..., " + line * bool(inside)
        at = start + i * step
        if inside:
            text += _brackets(values, tuple(inside), at, edge, precision, depth=depth + 1)
        else:
            text += _element(values[at], precision)
        text += "," + line if i < count - 1 else ""
    return f"[{text}]"


def _element(value: Any, precision: int) -> str:
    text = f"{value:.{precision}f}" if isinstance(value, np.floating) else str(value)
    return text if text.startswith("-") else f" {text}"
