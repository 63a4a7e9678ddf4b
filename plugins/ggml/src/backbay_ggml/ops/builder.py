"""Builds ggml tensors for the nodes of a graph, in their order, and converts between what core and ggml call a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from backbay import DType, Node, Spec, UnsupportedOpError
from backbay.plugin import Array, blocks, contiguous_strides, encode

from ..library.abi import NULL, Ptr, dtype_of, ffi
from ..library.library import Library
from ..tensors import conversions as convert

if TYPE_CHECKING:
    from ..devices.device import Device
    from ..devices.device_choice import Steer
    from ..weights.arrangements import Arrangement

CHUNK = 256  # tensors in one of ggml's pools
SLACK = 16  # more than any one of ggml's functions makes
LONGEST = (1 << 31) - 1  # an extent, and the number of rows
LARGEST = 1 << 46  # elements; no machine holds more, and sums of sizes stay far from overflow


@final
class Builder:
    """Makes the tensors of one graph; what it made is freed by `close`.

    Lowerings get it as their first argument. `raw`, `rows`, `dense` and `floats` give a node's tensor in
    increasing order of what is asked of its layout; `call` adds an op.
    """

    def __init__(
        self,
        library: Library,
        *,
        flash: bool,
        steer: Steer | None = None,
        has_signs: Callable[[Node], bool] = lambda weight: False,
        arrangement: Callable[[Node], Arrangement | None] = lambda weight: None,
    ) -> None:
        self.library, self.lib = library, library.lib
        self.has_signs = has_signs  # whether each code of a q8_0 weight has one of the other sign
        self.arrangement = arrangement  # of a weight's copy on the CPU
        self._steer = steer  # None where the CPU runs everything
        self.flash = flash  # whether attention may use flash attention
        self.order: list[Ptr] = []  # every op, in the order in which they run
        self.blank: list[Ptr] = []  # tensors without data or op
        self.constants: list[tuple[Ptr, Array]] = []
        self._pools: list[Ptr] = []
        self._room = 0
        self._memory = library.lib.ggml_tensor_overhead() * CHUNK
        self._roots: dict[int, Ptr] = {}  # by node index: the tensors that hold data
        self._latest: dict[int, Ptr] = {}  # by node index of a storage: what was written last
        self._products: dict[int, tuple[Ptr, Device]] = {}
        self._views: dict[int, tuple[Ptr, Ptr]] = {}
        self._made_once: dict[tuple[int, str], Ptr] = {}
        self._kept: list[Ptr] = []  # tensors outside of the pools

    def close(self) -> None:
        for pool in self._pools:
            self.lib.ggml_free(pool)
        self._pools.clear()
        self._kept.clear()

    # -- operands ----------------------------------------------------------------------------------------

    def turn_to(self, node: Node) -> None:
        """What is added from now on belongs to a node."""
        if self._steer is not None:
            self._steer.turn_to(node)

    def bind(self, node: Node, tensor: Ptr) -> None:
        """From now on a node's data are those of a tensor."""
        self._roots[node.index] = self._latest[node.index] = tensor

    def bind_product(self, node: Node, copy: Ptr, device: Device) -> None:
        """A weight has a copy for products alone, on a device."""
        self._products[node.index] = copy, device

    def wrote(self, node: Node, result: Ptr) -> None:
        """A write into a node's storage happened; who reads it from now on depends on the result."""
        self._latest[node.storage.index] = result

    def root(self, node: Node) -> Ptr:
        """The tensor that holds a node's data."""
        return self._roots[node.storage.index]

    def raw(self, node: Node) -> Ptr:
        """A node's tensor as it lies in memory."""
        latest = self._latest[node.storage.index]
        if not node.is_view and latest is self._roots[node.index]:
            return latest
        made = self._views.get(node.index)
        if made is None or made[0] is not latest:
            made = latest, self.view(latest, node.dtype, four(node), strides(node), node.offset)
            self._views[node.index] = made
        return made[1]

    def rows(self, node: Node, dtype: DType | None = None) -> Ptr:
        """A node's tensor, of a dtype if one is named, with the elements of each row adjoining and rows in order."""
        tensor = self.raw(node)
        if dtype is not None and node.dtype is not dtype:
            return self.cast(tensor, dtype)
        return self.with_rows(tensor)

    def dense(self, node: Node, dtype: DType | None = None) -> Ptr:
        """A node's tensor, of a dtype if one is named, with all elements adjoining."""
        tensor = self.raw(node)
        if dtype is not None and node.dtype is not dtype:
            return self.cast(tensor, dtype)
        return self.contiguous(tensor)

    def floats(self, node: Node) -> Ptr:
        """A node's tensor as contiguous f32."""
        return self.dense(node, DType.F32)

    def product(self, node: Node) -> Ptr | None:
        """A copy of a weight that products are faster with, if there is one where they run."""
        made = self._products.get(node.index)
        return (
            made[0] if made is not None and (self._steer is None or self._steer.current is made[1]) else None
        )

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU runs what is added now."""
        return self._steer is None or self._steer.current.is_cpu

    # -- tensors -----------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any) -> Ptr:
        """Add the op of the function ggml_NAME."""
        tensor = getattr(self.lib, f"ggml_{name}")(self.pool(), *args)
        return self.added(tensor)

    def added(self, tensor: Ptr) -> Ptr:
        """Take an op in, if the CPU runs it; with other devices, that is settled in the end."""
        if self._steer is not None:
            self._steer.take(tensor)
        elif not self.lib.ggml_backend_dev_supports_op(self.library.cpu, tensor):
            raise UnsupportedOpError(f"the CPU does not run {self.library.describe(tensor)}")
        self.order.append(tensor)
        return tensor

    def pool(self) -> Ptr:
        """A context of ggml's with room for what one function makes."""
        self._room -= SLACK
        if self._room < SLACK:
            made = self.lib.ggml_init(ffi.new("ggml_init_params *", (self._memory, NULL, True))[0])
            if made == NULL:
                raise MemoryError("no memory for a graph's description")
            self._pools.append(made)
            self._room = CHUNK
        return self._pools[-1]

    def new(self, dtype: DType, shape: Sequence[int]) -> Ptr:
        """A tensor without data or op."""
        made = self.lib.ggml_new_tensor_4d(self.pool(), int(dtype), *shape)
        self.blank.append(made)
        return made

    def constant(self, array: Array, dtype: DType) -> Ptr:
        """A tensor of fixed data, of the reversed shape of an array."""
        made = leaf_tensor(dtype, four(Spec(dtype, array.shape[::-1])))
        self._kept.append(made)
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

    def view(self, base: Ptr, dtype: DType, ne: Sequence[int], nb: Sequence[int], offset: int) -> Ptr:
        """A view of any geometry; `offset` counts from the start of the data that base itself looks into."""
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
        """A view with dimension i at position axes[i]; ggml's own refuses elements that overlap, by ending the process."""
        ne, nb = [0] * 4, [0] * 4
        for i, axis in enumerate(axes):
            ne[axis], nb[axis] = tensor.ne[i], tensor.nb[i]
        return self.view(tensor, dtype_of(tensor), ne, nb, tensor.view_offs)

    def transposed(self, tensor: Ptr) -> Ptr:
        """Dimensions 0 and 1 exchanged, laid out contiguously."""
        return self.call("cont", self.permute(tensor, 1, 0, 2, 3))

    def once(self, tensor: Ptr, what: str, make: Callable[[], Ptr]) -> Ptr:
        """What is made of a tensor, the same for all who ask."""
        key = int(ffi.cast("uintptr_t", tensor)), what
        if key not in self._made_once:
            self._made_once[key] = make()
        return self._made_once[key]

    def longer(self, copy: Ptr, rows: int) -> Ptr:
        """The copy of a weight, with more rows: of whatever follows it in its memory."""
        made = leaf_tensor(dtype_of(copy), (copy.ne[0], rows, 1, 1))
        made.buffer, made.data, made.extra = copy.buffer, copy.data, copy.extra
        self._kept.append(made)
        if self._steer is not None:
            self._steer.settle_copy(made, self._steer.current)
        return made

    def first_rows(self, matrix: Ptr, rows: int) -> Ptr:
        """The first elements of each column of a contiguous f32 matrix, as one of its own."""
        ne = (rows, matrix.ne[1], 1, 1)
        return self.call("cont", self.view(matrix, DType.F32, ne, tuple(matrix.nb), 0))

    def first_columns(self, matrix: Ptr, columns: int) -> Ptr:
        """A view of the first columns of a contiguous f32 matrix."""
        ne = (matrix.ne[0], columns, 1, 1)
        return self.view(matrix, DType.F32, ne, dense_strides(DType.F32, ne), 0)

    def contiguous(self, tensor: Ptr) -> Ptr:
        """The tensor with all elements adjoining, and with the strides that go with that in every dimension."""
        if not self.lib.ggml_is_contiguous(tensor):
            return self.call("cont", tensor)
        dtype, ne = dtype_of(tensor), tuple(tensor.ne)
        plain = dense_strides(dtype, ne)
        # Those of dimensions of one element do not matter, but some of ggml's checks look at them.
        return tensor if tuple(tensor.nb) == plain else self.view(tensor, dtype, ne, plain, tensor.view_offs)

    def with_rows(self, tensor: Ptr) -> Ptr:
        """The tensor, copied if its rows are scattered or overlap."""
        size = self.lib.ggml_get_type_traits(tensor.type).type_size
        return tensor if tensor.nb[0] == size and tensor.nb[1] >= size else self.call("cont", tensor)

    def cast(self, tensor: Ptr, dtype: DType) -> Ptr:
        """The tensor as another dtype, contiguous if it is converted."""
        return convert.cast(self, tensor, dtype)

    def finish(self, node: Node, result: Ptr) -> None:
        """Take a lowering's result as a node's data, once it has the dtype and shape that core announced."""
        result = self.contiguous(self.cast(result, node.dtype))
        if tuple(result.ne) != four(node):
            raise UnsupportedOpError(
                f"{node.op and node.op.name}: ggml would make {list(result.ne)} of it, not {node}"
            )
        if result.view_src != NULL:
            result = self._of_its_own(result)
        elif result.op == self.library.none_op:
            result = self.call("cont", result)
        self.bind(node, result)

    def _of_its_own(self, tensor: Ptr) -> Ptr:
        """A view from the start of what an op made is as good as that; any other one is copied."""
        whole = tensor.view_src
        if tensor.view_offs == 0 and whole.op != self.library.none_op:
            return tensor
        return self.call("cont", tensor)


def four(spec: Spec) -> tuple[int, ...]:
    """A shape of exactly four dimensions."""
    shape: tuple[int, ...] = (*spec.shape, 1, 1, 1, 1)[:4]
    return shape


def strides(spec: Spec) -> tuple[int, ...]:
    """Four strides; dimensions of one element get those of a contiguous layout, whatever a view says."""
    shape = four(spec)
    counts = blocks(spec.dtype, shape)
    made = [spec.stride(0) if spec.rank and counts[0] > 1 else spec.dtype.type_size]
    for n in (1, 2, 3):
        step = made[n - 1] * counts[n - 1]
        made.append(spec.stride(n) if n < spec.rank and shape[n] > 1 else step)
    return tuple(made)


def dense_strides(dtype: DType, shape: Sequence[int]) -> tuple[int, ...]:
    return contiguous_strides(dtype, tuple(shape))


def owner(tensor: Ptr) -> Ptr:
    """The tensor that a view looks into; one that is no view is its own."""
    return tensor if tensor.view_src == NULL else tensor.view_src


def leaf_tensor(dtype: DType, ne: Sequence[int]) -> Ptr:
    """A tensor outside of any pool, with no data yet."""
    made = ffi.new("ggml_tensor *")
    made.type, made.ne, made.nb = int(dtype), ne, dense_strides(dtype, ne)
    return made
