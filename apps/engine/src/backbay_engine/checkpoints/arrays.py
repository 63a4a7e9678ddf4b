"""Arrays of a checkpoint that are read when their data are needed, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import DType
from backbay.gguf import Derived, TensorInfo

Bytes: TypeAlias = NDArray[np.uint8]
Array: TypeAlias = NDArray[Any]
Open: TypeAlias = Callable[[TensorInfo], Bytes]
Rows: TypeAlias = Callable[[Open, int, int], Array]

CHUNK = 1 << 23  # bytes that are transformed at a time, about
ELEMENTS: Mapping[DType, str] = {
    DType.F32: "<f4",
    DType.F16: "<f2",
    DType.BF16: "<u2",
    DType.F64: "<f8",  # NumPy has no bf16
    DType.I64: "<i8",
    DType.I32: "<i4",
    DType.I16: "<i2",
    DType.I8: "u1",
}


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array in NumPy's order of dimensions. `rows` reads some indices of the first one.

    A quantized array has bytes as its last dimension, and `rows` gives bytes.
    """

    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[TensorInfo, ...]
    rows: Rows
    stored: TensorInfo | None = None  # the tensor of the file with these very bytes

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * (1 if self.dtype.is_quantized else self.dtype.type_size)

    @property
    def gguf_shape(self) -> tuple[int, ...]:
        if not self.dtype.is_quantized:
            return tuple(reversed(self.shape))
        *outer, width = self.shape
        return (width // self.dtype.type_size * self.dtype.block_size, *reversed(outer))

    def as_tensor(self, name: str) -> tuple[TensorInfo, Derived | None]:
        """The tensor of a model file with this name, and how its data are made, if they are not the file's."""
        if self.stored is not None and self.stored.offset % 8 == 0:  # libraries read whole numbers
            return replace(self.stored, name=name, shape=self.gguf_shape), None
        first = self.parts[0]
        info = TensorInfo(name, self.dtype, self.gguf_shape, first.offset, self.nbytes, first.path)
        return info, Derived(self.parts, self.chunks)

    def chunks(self, data: Open) -> Iterator[Bytes]:
        """All bytes, in order."""
        if not self.shape or not self.nbytes:
            yield _bytes(self.rows(data, 0, 0 if self.shape else 1))
            return
        step = max(1, CHUNK * self.shape[0] // self.nbytes)
        for begin in range(0, self.shape[0], step):
            yield _bytes(self.rows(data, begin, min(begin + step, self.shape[0])))

    # -- other arrays of this one ------------------------------------------------------------------------

    def floats(self) -> LazyArray:
        """As f32."""
        return self if self.dtype is DType.F32 else self.map(lambda numbers: numbers)

    def map(self, function: Callable[[Array], Array]) -> LazyArray:
        """A function of each number, computed in f32."""

        def rows(data: Open, begin: int, end: int) -> Array:
            numbers = function(as_floats(self.rows(data, begin, end), self.dtype))
            return np.asarray(numbers, np.float32)

        return replace(self, dtype=DType.F32, rows=rows, stored=None)

    def reshape(self, *shape: int) -> LazyArray:
        """With another shape, of the same first dimension."""
        assert shape[:1] == self.shape[:1], (shape, self.shape)
        return self._with(shape, lambda rows: rows.reshape(len(rows), *shape[1:]), self.stored)

    def regrouped(self, *shape: int) -> LazyArray:
        """With another shape; all of it is read at once, as no row of one shape need be one of the other."""

        def rows(data: Open, begin: int, end: int) -> Array:
            return self.whole(data).reshape(shape)[begin:end]

        return replace(self, shape=shape, rows=rows)

    def take(self, order: NDArray[np.int64]) -> LazyArray:
        """The rows with these indices. Rows that are read together should lie close together."""

        def rows(data: Open, begin: int, end: int) -> Array:
            wanted = order[begin:end]
            first = int(wanted.min(initial=self.shape[0]))
            return self.rows(data, first, int(wanted.max(initial=first - 1)) + 1)[wanted - first]

        return replace(self, shape=(len(order), *self.shape[1:]), rows=rows, stored=None)

    def part(self, begin: int, end: int) -> LazyArray:
        """The rows from `begin` to `end`: the file's bytes, if these are."""

        def rows(data: Open, low: int, high: int) -> Array:
            return self.rows(data, begin + low, begin + high)

        stored = self.stored
        if stored is not None:
            row = self.nbytes // self.shape[0] if self.shape[0] else 0
            stored = replace(stored, offset=stored.offset + begin * row, nbytes=(end - begin) * row)
        return replace(self, shape=(end - begin, *self.shape[1:]), rows=rows, stored=stored)

    def split(self, *sizes: int) -> list[LazyArray]:
        """Parts of these numbers of rows."""
        ends = np.cumsum(sizes).tolist()
        return [self.part(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def inner(self, begin: int, end: int, step: int = 1) -> LazyArray:
        """Some indices of the second dimension."""
        shape = (self.shape[0], len(range(begin, end, step)), *self.shape[2:])
        return self._with(shape, lambda rows: rows[:, begin:end:step])

    def take_inner(self, order: NDArray[np.int64]) -> LazyArray:
        """The indices of the second dimension in an order."""
        return self._with((self.shape[0], len(order), *self.shape[2:]), lambda rows: rows[:, order])

    def transposed(self) -> LazyArray:
        """With the last two dimensions exchanged."""
        *outer, high, low = self.shape
        if outer:
            return self._with((*outer, low, high), lambda rows: np.swapaxes(rows, -1, -2))

        def rows(data: Open, begin: int, end: int) -> Array:
            return self.whole(data)[:, begin:end].T

        return replace(self, shape=(low, high), rows=rows, stored=None)

    def whole(self, data: Open) -> Array:
        """All numbers; a view of the file where possible."""
        return self.rows(data, 0, self.shape[0])

    def _with(
        self, shape: tuple[int, ...], change: Callable[[Array], Array], stored: TensorInfo | None = None
    ) -> LazyArray:
        def rows(data: Open, begin: int, end: int) -> Array:
            return change(self.rows(data, begin, end))

        return replace(self, shape=shape, rows=rows, stored=stored)


def stored_array(info: TensorInfo) -> LazyArray:
    """A tensor as it lies in the file."""
    shape, element = tuple(reversed(info.shape)), ELEMENTS[info.dtype]

    def rows(data: Open, begin: int, end: int) -> Array:
        numbers = np.ndarray(shape, element, data(info).data)
        return numbers[begin:end] if shape else numbers

    return LazyArray(shape, info.dtype, (info,), rows, info)


def constant(numbers: Array, beside: LazyArray) -> LazyArray:
    """Numbers that no file holds, such as factors of the configuration."""
    return LazyArray(numbers.shape, DType.F32, beside.parts[:1], lambda _, begin, end: numbers[begin:end])


def stack(arrays: Sequence[LazyArray]) -> LazyArray:
    """Arrays of one shape along a new first dimension."""

    def rows(data: Open, begin: int, end: int) -> Array:
        return np.stack([each.whole(data) for each in arrays[begin:end]])

    return _joined(arrays, (len(arrays), *arrays[0].shape), rows)


def concatenate(arrays: Sequence[LazyArray]) -> LazyArray:
    """Arrays one after the other along the first dimension."""
    ends = np.cumsum([each.shape[0] for each in arrays]).tolist()

    def rows(data: Open, begin: int, end: int) -> Array:
        found = []
        for each, last in zip(arrays, ends, strict=True):
            first = last - each.shape[0]
            low, high = max(begin - first, 0), min(end - first, each.shape[0])
            if low < high:
                found.append(each.rows(data, low, high))
        return np.concatenate(found) if found else arrays[0].rows(data, 0, 0)

    return _joined(arrays, (ends[-1], *arrays[0].shape[1:]), rows)


def _joined(arrays: Sequence[LazyArray], shape: tuple[int, ...], rows: Rows) -> LazyArray:
    parts = tuple(part for each in arrays for part in each.parts)
    return LazyArray(shape, arrays[0].dtype, parts, rows)


def as_floats(numbers: Array, dtype: DType) -> NDArray[np.float32]:
    if dtype is DType.BF16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _bytes(numbers: Array) -> Bytes:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
