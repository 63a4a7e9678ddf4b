"""The contents of a cache for one sequence, in a form that is the same for all backends, paddings and orders of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, DType

from ...errors import ForeignSnapshotError
from ...steps.step import Ints
from .storage import WRITTEN, CellStorage, Part, flatten_heads, pad_cells

LARGEST = float(np.finfo(np.float16).max)


@final
@dataclass(frozen=True)
class CacheContents:
    """Arrays by name, and numbers.

    Keys and values of a layer are (positions, kv_heads, head_dim), in f16 if the cache is in 16 bits or fewer, but for
    BF16; everything else is in f32.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def part(self, prefix: str) -> CacheContents:
        """The contents of a part, of names that begin with `prefix` and a dot."""
        begin = len(prefix) + 1
        named = f"{prefix}."
        return CacheContents(
            {name[begin:]: array for name, array in self.arrays.items() if name.startswith(named)},
            {name[begin:]: number for name, number in self.numbers.items() if name.startswith(named)},
        )

    def number(self, name: str) -> int:
        """A count or a position; ForeignSnapshotError if another kind of cache wrote the contents."""
        if name not in self.numbers:
            raise ForeignSnapshotError(f"the snapshot has no number {name!r}: another kind of cache wrote it")
        if self.numbers[name] < 0:
            raise ForeignSnapshotError(f"the snapshot's {name} must be 0 or more, it is {self.numbers[name]}")
        return self.numbers[name]

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array of this shape; ForeignSnapshotError if there is none."""
        array = self.arrays.get(name)
        if array is None or array.shape != shape:
            found = "none" if array is None else list(array.shape)
            raise ForeignSnapshotError(
                f"the snapshot's {name!r} should have the shape {list(shape)}, it has {found}"
            )
        return array


def join_contents(parts: Iterable[tuple[str, CacheContents]]) -> CacheContents:
    arrays: dict[str, NDArray[Any]] = {}
    numbers: dict[str, int] = {}
    for prefix, part in parts:
        arrays |= {f"{prefix}.{name}": array for name, array in part.arrays.items()}
        numbers |= {f"{prefix}.{name}": number for name, number in part.numbers.items()}
    return CacheContents(arrays, numbers)


def read_cells(storage: CellStorage, cells: Ints) -> dict[str, NDArray[Any]]:
    """The keys and values of cells in all layers."""
    if not storage.can_move():
        raise BackbayError(
            f"the backend cannot read rows of {storage.dtype}, so that no snapshot can be taken"
        )
    found: dict[str, NDArray[Any]] = {}
    for i, layer in storage.layers.items():
        parts: list[tuple[Part, int]] = [("keys", layer.head_dim), ("values", layer.value_dim)]
        for part, width in parts if layer.within is None else parts[:1]:
            rows = _read(storage, i, part, cells)
            found[f"{part}.{i}"] = _shortened(rows, storage.dtype).reshape(len(cells), layer.kv_heads, width)
        if layer.within is not None:
            end = layer.within + layer.value_dim
            found[f"values.{i}"] = found[f"keys.{i}"][:, :, layer.within : end].copy()
    return found


def write_cells(storage: CellStorage, cells: Ints, contents: CacheContents) -> None:
    """Write keys and values into cells of all layers; nothing is written unless all arrays have the right shapes."""
    arrays: list[tuple[int, NDArray[np.float32], NDArray[np.float32]]] = []
    for i, layer in storage.layers.items():
        keys = contents.array(f"keys.{i}", (len(cells), layer.kv_heads, layer.head_dim))
        values = contents.array(f"values.{i}", (len(cells), layer.kv_heads, layer.value_dim))
        arrays.append((i, keys.reshape(len(cells), -1), values.reshape(len(cells), -1)))
    for i, keys, values in arrays if len(cells) else ():
        storage.write(i, cells, keys, values)


def _read(storage: CellStorage, i: int, part: Part, cells: Ints) -> NDArray[np.float32]:
    """Rows of a layer, (cells, width)."""
    size = min(WRITTEN, storage.cells)
    rows: list[NDArray[np.float32]] = []
    with storage.backend.new_context() as ctx:
        at = ctx.layer(i)
        held = storage.rows(at, i, part)
        ids = ctx.input().empty(DType.I32, size, *held.shape[2:])
        result, layer = held.rows(at, ids), storage.layers[i]
        if part == "keys":
            heads = result.reshape(at, layer.head_dim, layer.kv_heads, size)
            result = flatten_heads(at, layer.restored(at, heads))
        ctx.forward(result)
        for low in range(0, len(cells), size):
            ids.from_ints(np.broadcast_to(pad_cells(cells[low : low + size], size), ids.shape[::-1]))
            ctx.compute(result)
            found = result.numpy()
            rows.append((found[:, :, 0].T if held.rank == 3 else found)[: len(cells) - low].copy())
    return np.concatenate(rows) if rows else np.zeros((0, 0), np.float32)


def _shortened(rows: NDArray[np.float32], dtype: DType) -> NDArray[Any]:
    """Rows in f16, if the cache's dtype says no more."""
    if dtype is not DType.F16 and not dtype.is_quantized:
        return rows
    large = (np.abs(rows) > LARGEST).any()  # blocks of quantized numbers may be
    return rows if large else rows.astype(np.float16)
