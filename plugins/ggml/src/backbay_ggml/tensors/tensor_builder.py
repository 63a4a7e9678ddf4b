"""Makes ggml tensors in order: ops, views, constants, and copies in another layout or dtype."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backbay import DType, Spec, UnsupportedOpError
from backbay.internals import Array, blocks, contiguous_strides
from backbay.plugin import encode

from ..library.abi import NULL, Ptr, dtype_of, ffi, leaf_tensor, new_pool, tensor_address
from ..library.library import Library

EVERY_THREAD = -1  # GGML_N_TASKS_MAX
POOL = 256  # tensors in one pool
SLACK = 16  # more than any one of ggml's functions makes
LONGEST = (1 << 31) - 1  # of an extent, and of the number of rows: ggml counts them in 31 bits
LARGEST = 1 << 46  # elements; no machine holds more, and sums of sizes in C stay far from overflow
WORD = 2.0**32  # the weight of the high half of an i64
DIRECT = {
    (DType.F32, DType.F16), (DType.F32, DType.BF16), (DType.F16, DType.F32), (DType.F16, DType.BF16),
    (DType.BF16, DType.F32), (DType.BF16, DType.F16), (DType.F32, DType.I32), (DType.I32, DType.F32),
}  # fmt: skip


def four_dimensions(spec: Spec) -> tuple[int, ...]:
    """A shape of exactly four dimensions."""
    shape: tuple[int, ...] = (*spec.shape, 1, 1, 1, 1)[:4]
    return shape


def four_strides(spec: Spec) -> tuple[int, ...]:
    """Four strides; dimensions of one element get those of a contiguous layout, whatever a view says."""
    shape = four_dimensions(spec)
    counts = blocks(spec.dtype, shape)
    made = [spec.stride(0) if spec.rank and counts[0] > 1 else spec.dtype.type_size]
    for n in (1, 2, 3):
        step = made[n - 1] * counts[n - 1]
        made.append(spec.stride(n) if n < spec.rank and shape[n] > 1 else step)
    return tuple(made)


class TensorBuilder(ABC):
    """Makes the tensors of one graph, and frees them by `close`. A subclass decides which device runs an op."""

    def __init__(self, library: Library) -> None:
        self.library, self.lib = library, library.lib
        self.order: list[Ptr] = []  # every op, in the order in which they run
        self.blank: list[Ptr] = []  # tensors without data or op
        self.constants: list[tuple[Ptr, Array]] = []
        self.loose: list[Ptr] = []  # tensors outside of the pools, kept alive here
        self._pools: list[Ptr] = []
        self._room = 0  # tensors that still fit into the last pool
        self._pool_size = library.lib.ggml_tensor_overhead() * POOL
        self._made_once: dict[tuple[int, str], Ptr] = {}

    def close(self) -> None:
        for pool in self._pools:
            self.lib.ggml_free(pool)
        self._pools.clear()
        self.loose.clear()

    @abstractmethod
    def admit(self, tensor: Ptr) -> None:
        """Decide which device runs an op; UnsupportedOpError if none does."""

    # -- ops ---------------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any) -> Ptr:
        """Add the op that the function ggml_NAME makes."""
        return self.added(getattr(self.lib, f"ggml_{name}")(self.pool(), *args))

    def custom(
        self,
        name: str,
        shape: Sequence[int],
        operands: Sequence[Ptr],
        data: Ptr = NULL,
        *,
        dtype: DType = DType.F32,
        threads: int = EVERY_THREAD,
    ) -> Ptr:
        """A new tensor, which a function of native code fills."""
        function, count = self.library.custom_op(name), len(operands)
        return self.call("custom_4d", int(dtype), *shape, list(operands), count, function, threads, data)

    def added(self, tensor: Ptr) -> Ptr:
        """Add an op."""
        self.admit(tensor)
        self.order.append(tensor)
        return tensor

    def once(self, tensor: Ptr, what: str, make: Callable[[], Ptr]) -> Ptr:
        """A tensor derived from another one; made at the first request, and shared by all later ones."""
        key = tensor_address(tensor), what
        if key not in self._made_once:
            self._made_once[key] = make()
        return self._made_once[key]

    def pool(self) -> Ptr:
        """A pool with room for the tensors that one function makes."""
        self._room -= SLACK
        if self._room < SLACK:
            self._pools.append(new_pool(self.lib, self._pool_size))
            self._room = POOL
        return self._pools[-1]

    # -- data --------------------------------------------------------------------------------------------

    def new(self, dtype: DType, shape: Sequence[int]) -> Ptr:
        """A tensor without data or op."""
        made = self.lib.ggml_new_tensor_4d(self.pool(), int(dtype), *shape)
        self.blank.append(made)
        return made

    def constant(self, array: Array, dtype: DType) -> Ptr:
        """A tensor of fixed data; its shape is the array's, reversed."""
        made = leaf_tensor(dtype, array.shape[::-1])
        self.loose.append(made)
        self.constants.append((made, np.ascontiguousarray(encode(array, dtype)).reshape(-1).view(np.uint8)))
        return made

    def full(self, dtype: DType, shape: Sequence[int], value: float) -> Ptr:
        """A tensor with one value everywhere."""
        kind = np.int64 if dtype.is_integer else np.float32
        if dtype is DType.I64:
            pair = self.constant(np.array([value], kind).view(np.int32), DType.I32)
            count = int(np.prod(shape))
            flat = self.call("repeat_4d", pair, 2, count, 1, 1)
            return self.view(flat, dtype, shape, contiguous_strides(dtype, tuple(shape)), 0)
        return self.call("repeat_4d", self.constant(np.array([value], kind), dtype), *shape)

    # -- views -------------------------------------------------------------------------------------------

    def view(self, base: Ptr, dtype: DType, ne: Sequence[int], nb: Sequence[int], offset: int) -> Ptr:
        """A view of any geometry; `offset` counts from the start of the data that `base` itself looks into."""
        if 0 in ne:
            return self.new(dtype, ne)
        block = self.lib.ggml_get_type_traits(base.type).blck_size
        made = self.lib.ggml_view_1d(self.pool(), base, block, 0)
        made.type, made.ne, made.nb, made.view_offs = int(dtype), ne, nb, offset
        if made.view_src.data != NULL:
            made.data = ffi.cast("char *", made.view_src.data) + offset
        self.order.append(made)
        return made

    def bitcast(self, tensor: Ptr, dtype: DType, ne: Sequence[int]) -> Ptr:
        """The bytes of a contiguous tensor as another dtype."""
        return self.view(tensor, dtype, ne, contiguous_strides(dtype, tuple(ne)), tensor.view_offs)

    def reshape(self, tensor: Ptr, *ne: int) -> Ptr:
        """A contiguous tensor with another shape."""
        padded = (*ne, 1, 1, 1, 1)[:4]
        return tensor if tuple(tensor.ne) == padded else self.call("reshape_4d", tensor, *padded)

    def permute(self, tensor: Ptr, *axes: int) -> Ptr:
        """A view with dimension i at position axes[i]; ggml's own ends the process if elements overlap."""
        ne, nb = [0] * 4, [0] * 4
        for i, axis in enumerate(axes):
            ne[axis], nb[axis] = tensor.ne[i], tensor.nb[i]
        return self.view(tensor, dtype_of(tensor), ne, nb, tensor.view_offs)

    # -- layouts -----------------------------------------------------------------------------------------

    def transposed(self, tensor: Ptr) -> Ptr:
        """A contiguous copy with dimensions 0 and 1 exchanged."""
        return self.call("cont", self.permute(tensor, 1, 0, 2, 3))

    def padded(self, tensor: Ptr, columns: int, rows: int = 0) -> Ptr:
        """The tensor with zeros behind the elements of each row, and behind the rows; itself if none are added."""
        if columns <= 0 and rows <= 0:
            return tensor
        return self.call("pad_ext", tensor, 0, columns, 0, rows, 0, 0, 0, 0)

    def contiguous(self, tensor: Ptr) -> Ptr:
        """The tensor with all elements adjoining, copied if necessary."""
        if not self.lib.ggml_is_contiguous(tensor):
            return self.call("cont", tensor)
        dtype, ne = dtype_of(tensor), tuple(tensor.ne)
        plain = contiguous_strides(dtype, ne)
        # The strides of one-element dimensions do not matter, but some of ggml's checks look at them.
        return tensor if tuple(tensor.nb) == plain else self.view(tensor, dtype, ne, plain, tensor.view_offs)

    def with_rows(self, tensor: Ptr) -> Ptr:
        """The tensor, copied if its rows are scattered or overlap."""
        size = self.lib.ggml_get_type_traits(tensor.type).type_size
        return tensor if tensor.nb[0] == size and tensor.nb[1] >= size else self.call("cont", tensor)

    def cast(self, x: Ptr, dtype: DType) -> Ptr:
        """A tensor as another dtype, contiguous if it is converted; the tensor itself if it has that dtype.

        All conversions are made of the few that ggml has.
        """
        source = dtype_of(x)
        if source is dtype:
            return x
        if (source, dtype) in DIRECT:
            return self.call("cast", x, int(dtype))
        if source.is_quantized and dtype is DType.F32:
            return self.call("cast", self.with_rows(x), int(dtype))
        if source.is_float and dtype.is_quantized:
            if not self.library.can_quantize(dtype):
                raise UnsupportedOpError(f"this ggml cannot quantize to {dtype}")
            return self.call("cast", self.contiguous(x), int(dtype))
        if source is DType.I64:
            return _from_int64(self, x, dtype)
        if dtype is not DType.I64:
            return self.cast(self.cast(x, DType.F32), dtype)
        return (
            _int32_to_int64(self, x)
            if source is DType.I32
            else _float_to_int64(self, self.cast(x, DType.F32))
        )


def _from_int64(g: TensorBuilder, x: Ptr, dtype: DType) -> Ptr:
    x = g.contiguous(x)
    low, high = (
        g.call("cont", g.view(x, DType.I32, tuple(x.ne), tuple(x.nb), x.view_offs + offset))
        for offset in (0, 4)
    )
    if dtype is DType.I32:
        return low  # numbers that do not fit may give anything
    # Read as a signed number, a low half with its top bit set is 2^32 too small: the high half makes up for it.
    lows, highs = (g.cast(half, DType.F32) for half in (low, high))
    carried = g.call("add", highs, g.call("step", g.call("neg", lows)))
    return g.cast(g.call("add", g.call("scale", carried, WORD), lows), dtype)


def _int32_to_int64(g: TensorBuilder, x: Ptr) -> Ptr:
    negative = g.call("step", g.call("neg", g.cast(x, DType.F32)))
    return _joined(g, g.contiguous(x), g.cast(g.call("neg", negative), DType.I32))


def _float_to_int64(g: TensorBuilder, x: Ptr) -> Ptr:
    whole = g.call("trunc", g.contiguous(x))
    high = g.call("trunc", g.call("scale", whole, 1 / WORD))
    low = g.call("sub", whole, g.call("scale", high, WORD))  # exact, below 2^32, of the number's sign
    # A low half beyond the range of i32 is shifted by 2^32; a negative one borrows from the high half.
    negative = g.call("neg", low)
    above = g.call("step", g.call("add", low, g.full(DType.F32, (1, 1, 1, 1), 128 - 2.0**31)))
    below = g.call("step", g.call("add", negative, g.full(DType.F32, (1, 1, 1, 1), -(2.0**31))))
    signed = g.call("sub", low, g.call("scale", g.call("sub", above, below), WORD))
    carried = g.call("sub", high, g.call("step", negative))
    return _joined(g, g.cast(signed, DType.I32), g.cast(carried, DType.I32))


def _joined(g: TensorBuilder, low: Ptr, high: Ptr) -> Ptr:
    """i64 of its low and high halves, both contiguous i32."""
    ne = tuple(low.ne)
    count = ne[0] * ne[1] * ne[2] * ne[3]
    pairs = g.call("concat", g.reshape(low, 1, count), g.reshape(high, 1, count), 0)
    return g.bitcast(pairs, DType.I64, ne)
