"""The mean of each layer's keys, which quantized keys lose: often its large features are those of all keys."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...steps.step import Ints
from ..contract import Shift
from .contents import read_cells
from .storage import CellStorage

LEAST: Final = 16  # keys that have a mean worth knowing
PLACES: Final = 512  # positions that stand for all


def learn_means(
    storage: CellStorage, shift: Shift | None, cells: Ints, positions: Ints, capacity: int
) -> None:
    """Centre the keys of all layers by those in some cells, of which each has a position.

    Turned to position 0, they have a mean, which tokens have wherever they stand: so its mean over all positions is
    that of later keys.
    """
    if len(cells) < LEAST:
        return
    places = np.random.default_rng(0).integers(0, capacity, PLACES, dtype=np.int32)
    keys = read_cells(storage, cells)
    for i, layer in storage.layers.items():
        if layer.rotation is not None:
            mean = turned(storage, shift, i, keys[f"keys.{i}"], -positions).mean(0)
            layer.rotation.centre(turned(storage, shift, i, np.stack([mean] * PLACES), places).mean(0))


def turned(
    storage: CellStorage, shift: Shift | None, i: int, keys: NDArray[Any], offsets: Ints
) -> NDArray[np.float32]:
    """Keys of a layer, (n, kv_heads, head_dim), each moved by an offset."""
    with storage.backend.new_context() as ctx:
        given = ctx.input().from_floats(keys)
        moved = given if shift is None else shift(ctx.layer(i), i, given, ctx.input().from_ints(offsets))
        if moved is not given:
            ctx.compute(moved)
        return np.asarray(moved.numpy(), np.float32)
