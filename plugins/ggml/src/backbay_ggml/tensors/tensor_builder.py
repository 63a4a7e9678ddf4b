"""Makes ggml tensors in order: ops, views, constants and copies in another layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backbay import DType, Spec
from backbay.internals import Array
from backbay.plugin import encode

from ..library.abi import NULL, Ptr, address, dtype_of, ffi
from ..library.library import Library
from ..library.native import EVERY_THREAD
from ..library.pools import new_pool
from .layouts import dense_strides, leaf_tensor_of

POOL = 256  # tensors in one pool
SLACK = 16  # more than any one of ggml's functions makes


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
        function: Ptr,
        shape: Sequence[int],
        operands: Sequence[Ptr],
        data: Ptr = NULL,
        *,
        dtype: DType = DType.F32,
        threads: int = EVERY_THREAD,
    ) -> Ptr:
        """A new tensor, which a function of native code fills."""
        return self.call(
            "custom_4d", int(dtype), *shape, list(operands), len(operands), function, threads, data
        )

    def added(self, tensor: Ptr) -> Ptr:
        """Add an op."""
        self.admit(tensor)
        self.order.append(tensor)
        return tensor

    def once(self, tensor: Ptr, what: str, make: Callable[[], Ptr]) -> Ptr:
        """A tensor derived from another one; made at the first request, and shared by all later ones."""
        key = address(tensor), what
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
        made = leaf_tensor_of(Spec(dtype, array.shape[::-1]))
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
            return self.view(flat, dtype, shape, dense_strides(dtype, shape), 0)
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
        return self.view(tensor, dtype, ne, dense_strides(dtype, ne), tensor.view_offs)

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

    def first_columns(self, matrix: Ptr, columns: int) -> Ptr:
        """A view of the first columns of a contiguous f32 matrix."""
        ne = (matrix.ne[0], columns, 1, 1)
        return self.view(matrix, DType.F32, ne, dense_strides(DType.F32, ne), 0)

    # -- layouts -----------------------------------------------------------------------------------------

    def transposed(self, tensor: Ptr) -> Ptr:
        """A contiguous copy with dimensions 0 and 1 exchanged."""
        return self.call("cont", self.permute(tensor, 1, 0, 2, 3))

    def first_rows(self, matrix: Ptr, rows: int) -> Ptr:
        """A contiguous copy of the first rows of a contiguous f32 matrix."""
        ne = (rows, matrix.ne[1], 1, 1)
        return self.call("cont", self.view(matrix, DType.F32, ne, tuple(matrix.nb), 0))

    def contiguous(self, tensor: Ptr) -> Ptr:
        """The tensor with all elements adjoining, copied if necessary."""
        if not self.lib.ggml_is_contiguous(tensor):
            return self.call("cont", tensor)
        dtype, ne = dtype_of(tensor), tuple(tensor.ne)
        plain = dense_strides(dtype, ne)
        # The strides of one-element dimensions do not matter, but some of ggml's checks look at them.
        return tensor if tuple(tensor.nb) == plain else self.view(tensor, dtype, ne, plain, tensor.view_offs)

    def with_rows(self, tensor: Ptr) -> Ptr:
        """The tensor, copied if its rows are scattered or overlap."""
        size = self.lib.ggml_get_type_traits(tensor.type).type_size
        return tensor if tensor.nb[0] == size and tensor.nb[1] >= size else self.call("cont", tensor)
