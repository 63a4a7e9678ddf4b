"""Changes of arrays that families share: what becomes of the weights of transformers in a model file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..arrays import LazyArray
from .config_json import Settings
from .family_mapping import Change


def left_out(_array: LazyArray, _settings: Settings) -> None:
    return None


def plus_one(array: LazyArray, _settings: Settings) -> LazyArray:
    """The weight of a norm that multiplies by 1 + weight."""
    return array.map(lambda numbers: numbers + np.float32(1))


def interleaved(array: LazyArray, heads: int) -> LazyArray:
    """Rows whose halves of each head rotate together, as pairs of neighbours."""
    head = array.shape[0] // heads
    order = np.arange(heads * head).reshape(heads, 2, head // 2).swapaxes(1, 2).reshape(-1)
    return array.take(order)


def interleaved_query(array: LazyArray, settings: Settings) -> LazyArray:
    return interleaved(array, settings.heads)


def interleaved_key(array: LazyArray, settings: Settings) -> LazyArray:
    return interleaved(array, settings.kv_heads)


INTERLEAVED: Mapping[str, Change] = {
    r"q_proj\.(weight|bias)$": interleaved_query,
    r"k_proj\.(weight|bias)$": interleaved_key,
}


def transposed(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.transposed()


def negative_exponential(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.map(lambda numbers: -np.exp(numbers.astype(np.float64)))


def squeezed(array: LazyArray, _settings: Settings) -> LazyArray:
    """Without the dimensions of one element, except the first."""
    return array.reshape(array.shape[0], *(n for n in array.shape[1:] if n != 1))


def halves(first: str, second: str) -> Change:
    """The two halves of the rows, or of each expert's rows, under two names."""
    return equal_parts(first, second)


def equal_parts(*names: str) -> Change:
    """Parts of as many rows each, or of each expert's rows, by name."""

    def change(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
        if len(array.shape) == 3:
            rows = array.shape[1] // len(names)
            parts = [array.inner(n * rows, (n + 1) * rows) for n in range(len(names))]
        else:
            parts = array.split(*[array.shape[0] // len(names)] * len(names))
        return dict(zip(names, parts, strict=True))

    return change
