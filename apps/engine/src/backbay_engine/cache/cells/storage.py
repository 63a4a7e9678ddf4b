"""The memory of caches: leaves for the keys and values of each layer, and graphs that move cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, Context, DType, DTypeError, ShapeError, Spec, Tensor, ops

from ...steps.step import Ints
from ..contract import AttentionOperands, BoundCache, CachePlan, CacheSizes, Shift, SingleCache
from .masks import NUMPY
from .rotation import ROTATED, KeyRotation

CHUNK = 512  # cells that one run of a mover moves
WRITTEN = 256  # cells that one run writes or reads: few, because its memory is not reserved


Part: TypeAlias = Literal["keys", "values"]


@dataclass(frozen=True)
class LayerKeysAndValues:
    """A layer's keys, (head_dim * kv_heads, cells), and values, the same or permuted, (cells, width).

    within    values are the features of the keys from this one on, so that `value` is `key`; None: they lie apart
    rotation  of keys, before they are stored; None: they are stored as they are
    """

    key: Tensor
    value: Tensor
    head_dim: int
    value_dim: int
    kv_heads: int
    within: int | None = None
    rotation: KeyRotation | None = None

    def stored(self, ctx: Context, keys: Tensor) -> Tensor:
        """Keys as they are stored, (head_dim, kv_heads, n)."""
        return keys if self.rotation is None else self.rotation.store(ctx, keys)

    def restored(self, ctx: Context, keys: Tensor) -> Tensor:
        """Stored keys as they were put, (head_dim, kv_heads, n)."""
        return keys if self.rotation is None else self.rotation.restore(ctx, keys)

    @property
    def sizes(self) -> tuple[int, int, int, int | None]:
        return self.head_dim, self.value_dim, self.kv_heads, self.within


class CellStorage:
    """The memory of all layers, with the same number of cells and dtype; a layer is allocated at its first use."""

    def __init__(self, backend: Backend, dtype: DType, cells: int) -> None:
        self.config = backend.cache_config()
        require_cache_dtype(backend, dtype)
        self.backend, self.dtype, self.cells = backend, dtype, cells
        self.layers: dict[int, LayerKeysAndValues] = {}
        self._ctx = backend.new_context()
        self._movers: dict[tuple[str, Shift | None], CellMover] = {}

    def close(self) -> None:
        self.forget_movers()
        self._ctx.close()

    def layer(self, i: int, key: Tensor, value: Tensor) -> LayerKeysAndValues:
        """The memory of a layer, for keys and values of these shapes, (head_dim, kv_heads, tokens)."""
        sizes = key.dim(0), value.dim(0), key.dim(1), self._within(key, value)
        if value.dim(1) != key.dim(1) or value.dim(2) != key.dim(2):
            raise ShapeError(f"layer {i}: key {key} and value {value} must have the same heads and tokens")
        layer = self.layers.get(i)
        if layer is None:
            layer = self.layers[i] = self._make(i, *sizes)
            self.forget_movers()
        elif layer.sizes != sizes:
            raise ShapeError(
                f"layer {i}: it holds (head_dim, value_dim, kv_heads, within) = {layer.sizes}, got {sizes}"
            )
        return layer

    def _within(self, key: Tensor, value: Tensor) -> int | None:
        """The feature of the keys that values begin with, if they are a view of the keys; None if they lie apart."""
        if value.storage is not key or key.strides is not None:
            return None
        if any(value.dim(n) > 1 and value.stride(n) != key.stride(n) for n in (1, 2)):
            return None
        within, block = value.offset // key.dtype.type_size, self.dtype.block_size
        fits = within + value.dim(0) <= key.dim(0) and within % block == 0 and not self.config.permuted_v
        return within if fits else None

    def _make(
        self, i: int, head_dim: int, value_dim: int, kv_heads: int, within: int | None
    ) -> LayerKeysAndValues:
        for n in (head_dim, value_dim):
            if n % self.dtype.block_size:
                raise DTypeError(
                    f"layer {i}: heads of {n} cannot be stored as {self.dtype}, in blocks of {self.dtype.block_size}"
                )
        ctx = self._ctx.layer(i)
        key = ctx.zeros(self.dtype, head_dim * kv_heads, self.cells, row_axis=1)
        if within is not None:
            return LayerKeysAndValues(key, key, head_dim, value_dim, kv_heads, within)
        width = value_dim * kv_heads
        if self.config.permuted_v:
            value = ctx.zeros(self.dtype, self.cells, width, row_axis=0)
        else:
            value = ctx.zeros(self.dtype, width, self.cells, row_axis=1)
        rotation = KeyRotation(ctx, head_dim, kv_heads) if self.dtype in ROTATED else None
        return LayerKeysAndValues(key, value, head_dim, value_dim, kv_heads, rotation=rotation)

    def mask_rows(self, tokens: int) -> int:
        """The rows of a step's mask: one for each token, and padding."""
        return rounded_up(max(tokens, 1), self.config.mask_batch_padding)

    def mask_nbytes(self, tokens: int) -> int:
        return self.mask_rows(tokens) * self.cells * NUMPY[self.config.mask_dtype].itemsize

    # -- writing and reading -----------------------------------------------------------------------------

    def store(
        self, ctx: Context, layer: int, key: Tensor, value: Tensor, cells: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values, (head_dim, kv_heads, n), into cells; aliases of all keys and all values."""
        held = self.layer(layer, key, value)
        keys = held.key.set_rows(ctx, flatten_heads(ctx, held.stored(ctx, key)), cells)
        if held.within is not None:
            ctx.forward(keys)
            return keys, keys
        values = self.write_values(ctx, layer, flatten_heads(ctx, value), cells)
        ctx.forward(keys, values)
        return keys, values

    def write_values(self, ctx: Context, layer: int, value: Tensor, cells: Tensor) -> Tensor:
        """Write values, (width, n), into cells; an alias of all values."""
        if self.config.permuted_v:  # each element is a row in its own slice; all slices share the ids
            lifted = value.view(ctx, 0, (1, *value.shape), (value.dtype.type_size, value.stride(1)))
            value = lifted.permute(ctx, 0, 2, 1)
        return self.rows(ctx, layer, "values").set_rows(ctx, value, cells)

    def rows(self, ctx: Context, layer: int, part: Part) -> Tensor:
        """A layer's keys or values, (width, cells); permuted values with a slice for each feature, (1, cells, width)."""
        held = self.layers[layer]
        if part == "keys" or not self.config.permuted_v:
            return held.key if part == "keys" else held.value
        return held.value.reshape(ctx, 1, self.cells, held.value_dim * held.kv_heads)

    # -- moving ------------------------------------------------------------------------------------------

    def can_move(self) -> bool:
        """Whether the backend can read rows of this dtype: moving and rotating need it."""
        rows = Spec(self.dtype, (self.dtype.block_size, 1)), Spec(DType.I32, (1,))
        return bool(self.backend.supports(ops.rows, rows))

    def mover(self, part: Part, shift: Shift | None = None) -> CellMover:
        """The mover of the keys or values of all layers; with `shift`, keys are rotated as they move."""
        mover = self._movers.get((part, shift))
        if mover is None:
            mover = self._movers[part, shift] = CellMover(self, part, shift)
        return mover

    def wipe(self, cells: Ints) -> None:
        for i, layer in self.layers.items():
            widths = layer.head_dim * layer.kv_heads, layer.value_dim * layer.kv_heads
            keys, values = (np.broadcast_to(np.float32(0), (len(cells), width)) for width in widths)
            self.write(i, cells, keys, values)

    def write(self, i: int, cells: Ints, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Write a layer's keys and values, (cells, width)."""
        layer, size = self.layers[i], min(WRITTEN, self.cells)
        with self.backend.new_context() as ctx:
            host, at = ctx.input(), ctx.layer(i)
            ids = host.empty(DType.I32, size)
            key = host.empty(DType.F32, layer.head_dim, layer.kv_heads, size)
            value = host.empty(DType.F32, layer.value_dim * layer.kv_heads, size)
            ctx.forward(layer.key.set_rows(at, flatten_heads(at, layer.stored(at, key)), ids))
            if layer.within is None:
                ctx.forward(self.write_values(at, i, value, ids))
            for low in range(0, len(cells), size):
                ids.from_ints(pad_cells(cells[low : low + size], size))
                for leaf, rows in ((key, keys), (value, values)):
                    part = rows[low : low + size].astype(np.float32)
                    leaf.from_floats(np.pad(part, ((0, size - len(part)), (0, 0)), mode="edge"))
                ctx.compute()

    def forget_movers(self) -> None:
        while self._movers:
            self._movers.popitem()[1].close()


class CellMover:
    """A graph that copies cells of all layers to other cells."""

    def __init__(self, storage: CellStorage, part: Part, shift: Shift | None) -> None:
        self._storage, self._size = storage, min(CHUNK, storage.cells)
        self._ctx = storage.backend.new_context()
        try:
            self._host = self._ctx.input()
            self._sources: dict[tuple[int, ...], Tensor] = {}  # by shape: repeated for each slice
            self._targets, self._offsets = (self._host.empty(DType.I32, self._size) for _ in range(2))
            for i, layer in storage.layers.items():
                if part == "keys" or layer.within is None:
                    self._ctx.forward(self._move(self._ctx.layer(i), i, part, shift))
            self._ctx.reserve()
        except BaseException:
            self._ctx.close()
            raise

    def run(self, sources: Ints, targets: Ints, offset: int = 0) -> None:
        """Copy cells; keys are rotated by `offset` positions. A chunk must not read cells that an earlier one wrote."""
        size = self._size
        for low in range(0, len(sources), size):
            self._targets.from_ints(pad_cells(targets[low : low + size], size))
            self._offsets.from_ints(np.full(size, offset, np.int32))
            for leaf in self._sources.values():
                leaf.from_ints(np.broadcast_to(pad_cells(sources[low : low + size], size), leaf.shape[::-1]))
            self._ctx.compute()

    def close(self) -> None:
        self._ctx.close()

    def _move(self, ctx: Context, i: int, part: Part, shift: Shift | None) -> Tensor:
        layer, held = self._storage.layers[i], self._storage.rows(ctx, i, part)
        shape = self._size, *held.shape[2:]
        if shape not in self._sources:
            self._sources[shape] = self._host.empty(DType.I32, *shape)
        rows = held.rows(ctx, self._sources[shape])
        if shift is not None:
            heads = rows.reshape(ctx, layer.head_dim, layer.kv_heads, self._size)
            turned = shift(ctx, i, layer.restored(ctx, heads), self._offsets)
            if turned.shape != heads.shape:
                raise ShapeError(f"layer {i}: the shift made {turned} of keys {heads}")
            rows = flatten_heads(ctx, layer.stored(ctx, turned))
        return held.set_rows(ctx, rows, self._targets)


class CellCache(SingleCache):
    _store: CellStorage | None = None

    @property
    def storage(self) -> CellStorage:
        if self._store is None:
            raise BackbayError("the cache is not open")
        return self._store

    def open_store(self, backend: Backend, sizes: CacheSizes, cells: int) -> CellStorage:
        self.check_closed(sizes)
        self._store, self._sizes = CellStorage(backend, sizes.dtype, cells), sizes
        return self._store

    @property
    def host_nbytes(self) -> int:
        """Bytes of the mask of the largest step."""
        return self.storage.mask_nbytes(self.sizes.batch)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._sizes = None


@dataclass(frozen=True)
class CellPlan(CachePlan):
    """The cells that a step writes, and the range of cells that it sees."""

    cells: Ints
    first: int
    history: int


class BoundCellCache(BoundCache):
    """The leaves of a traced step, and the layers' tensors after its writes."""

    _missing: ClassVar[str]  # in a layer for which `get` finds nothing
    _masks: list[Tensor]  # with spans, and last without them; none if all tokens see all of the range

    def __init__(self, storage: CellStorage, ctx: Context, plan: CellPlan) -> None:
        self._storage, self._first, self._history = storage, plan.first, plan.history
        self._host = ctx.input()
        self._cells = self._host.empty(DType.I32, len(plan.cells))
        self._written: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self._written[layer] = self._storage.store(ctx, layer, key, value, self._cells)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> AttentionOperands:
        storage, first, end = self._storage, self._first, self._first + self._history
        held = storage.layers.get(layer)
        if held is None or not self._history:
            raise BackbayError(f"layer {layer} has {self._missing}")
        keys, values = self._written.get(layer, (held.key, held.value))
        key = keys.reshape(ctx, held.head_dim, held.kv_heads, storage.cells).slice(ctx, 2, first, end)
        if held.within is not None:  # of this very tensor, so that a kernel sees it
            value = key.slice(ctx, 0, held.within, held.within + held.value_dim)
        elif storage.config.permuted_v:
            value = values.reshape(ctx, storage.cells, held.value_dim, held.kv_heads).slice(
                ctx, 0, first, end
            )
        else:
            value = values.reshape(ctx, held.value_dim, held.kv_heads, storage.cells).slice(
                ctx, 2, first, end
            )
        mask = self._masks[0 if spans else -1] if self._masks else None
        return AttentionOperands(key, value, mask, rotation=held.rotation)


def pad_cells(cells: Ints, size: int) -> Ints:
    """A chunk of cells, padded with its last one: writing the same data again does no harm."""
    return np.pad(cells, (0, size - len(cells)), mode="edge")


def flatten_heads(ctx: Context, x: Tensor) -> Tensor:
    """(d, heads, n) as (d * heads, n), by one op for all sizes; no copy if heads are adjacent in memory."""
    width, n = x.dim(0) * x.dim(1), x.dim(2)
    adjoins = x.dim(1) == 1 or x.stride(1) == x.dtype.row_size(x.dim(0))
    if adjoins and x.stride(0) == x.dtype.type_size:
        return x.view(ctx, 0, (width, n), (x.stride(2),))
    return x.contiguous(ctx, width, n)


def rounded_up(n: int, step: int) -> int:
    """The least multiple of `step` that is no less than n."""
    return -(-n // step) * step


def require_cache_dtype(backend: Backend, dtype: DType) -> None:
    """DTypeError if the backend cannot hold a cache of this dtype; it lists the dtypes that it can."""
    config = backend.cache_config()
    held = ", ".join(map(str, config.dtypes))
    if dtype not in config.dtypes:
        raise DTypeError(f"backend {backend.name} cannot hold a cache of {dtype}; it can hold {held}")
    if config.permuted_v and dtype.is_quantized:
        plain = ", ".join(str(kind) for kind in config.dtypes if not kind.is_quantized)
        raise DTypeError(
            f"backend {backend.name} permutes values, so that they cannot be {dtype}: take one of {plain}, or "
            "turn flash attention on"
        )
