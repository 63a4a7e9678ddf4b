"""Tensors as text, for debugging."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.encoding import flat_numbers
from .tensor import Tensor


def dump(tensor: Tensor, precision: int = 4, threshold: int = 1000, edge_items: int = 3) -> str:
    """A tensor's elements in nested brackets, the last dimension outermost; floats with `precision` decimals.

    If there are more than `threshold` elements, only `edge_items` at both ends of each dimension are shown. Half and
    quantized types are shown as floats. A tensor without a result is computed, with its ancestors; if one of them
    writes, NotComputedError is raised instead.
    """
    if tensor.home is None or tensor.leaf is not None or tensor.home.has_result(tensor):
        values = tensor.numpy()
    else:
        values = flat_numbers(tensor.home.evaluate(tensor), tensor.dtype).reshape(tensor.shape[::-1])
    edge = edge_items if tensor.size > threshold else tensor.size
    return _brackets(np.atleast_1d(values), edge, precision, depth=1)


def _brackets(values: Any, edge: int, precision: int, *, depth: int) -> str:
    """The text of an array, or of an element."""
    if not values.ndim:
        text = f"{values:.{precision}f}" if isinstance(values, np.floating) else str(values)
        return text if text.startswith("-") else f" {text}"
    line = "\n" * (values.ndim - 1) + " " * depth if values.ndim > 1 else " "
    elided = len(values) > 2 * edge
    ends = [values[:edge], values[len(values) - edge :]] if elided else [values]
    texts = [
        f",{line}".join(_brackets(each, edge, precision, depth=depth + 1) for each in end) for end in ends
    ]
    dots = f",{line}..., {line if values.ndim > 1 else ''}"
    return f"[{dots.join(texts)}]"
