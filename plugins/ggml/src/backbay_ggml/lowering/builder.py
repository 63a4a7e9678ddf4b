"""Lowers the nodes of a checked graph to ggml's ops: the table of kernels, and the builder, the first argument of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import nan, prod
from typing import Any, final

import numpy as np

from backbay import DType, Graph, KernelTable, Node, Op, UnsupportedOpError, ops

from ..devices.device import Device
from ..devices.op_placer import OpPlacer
from ..library.abi import Ptr, dtype_of, leaf_tensor, tensor_address, view_owner
from ..library.avoidance import NO_TERMS, LibraryFault
from ..library.library import Library
from ..tensors.tensor_builder import LARGEST, LONGEST, TensorBuilder, four_dimensions, four_strides
from ..weights.arrangements import WeightArrangement
from ..weights.model_weights import ModelWeights

kernel = KernelTable(skip=1)

Calls = Mapping[Op[Any, Any], Callable[..., Ptr]]
"""Kernels by op, as functions of the builder and the arguments of a node."""

WHEN_EMPTY: dict[Op[Any, Any], float] = {
    ops.mulmat: 0.0,
    ops.mulmat_full_prec: 0.0,
    ops.mulmat_id: 0.0,
    ops.sum_rows: 0.0,
    ops.mean: nan,
    ops.conv2d: 0.0,
    ops.conv3d: 0.0,
    ops.conv1d_dw: 0.0,
    ops.im2col: 0.0,
    ops.avg_pool2d: 0.0,
    ops.pad_ext: 0.0,
}
"""The values of results that are not empty, though an operand is."""
NEXT_WEIGHTS = 2
"""The operand of a native product that holds the weights of the next one, as in products.cpp."""


@final
class GgmlBuilder(TensorBuilder):
    """The tensors of the nodes of one graph, on the CPU, or where an `op_placer` puts them.

    `raw`, `rows`, `dense` and `floats` give a node's tensor; each asks more of its layout than the one before.
    """

    def __init__(
        self,
        library: Library,
        *,
        flash: bool,
        weights: ModelWeights | None = None,
        op_placer: OpPlacer | None = None,
        repeating: Collection[Node] = (),
    ) -> None:
        super().__init__(library)
        self.flash = flash  # whether attention may use flash attention
        self._weights = weights
        self._op_placer = op_placer  # None where the CPU runs everything
        self._repeating = repeating  # ids of writes that may repeat: rows of the same id are made equal first
        self.positions: list[tuple[Ptr, Node]] = []  # constants that each run makes anew, of ids
        self._roots: dict[int, Ptr] = {}  # by node index: the tensors that hold data
        self._latest: dict[int, Ptr] = {}  # by node index of a storage: its latest write
        self._products: dict[int, tuple[Ptr, Device]] = {}
        self._views: dict[int, tuple[Ptr, Ptr]] = {}
        self._last_product: Ptr | None = None  # of native code
        self._begins: list[tuple[int, int]] = []  # of nodes: the place of the first op, and the index

    # -- devices -----------------------------------------------------------------------------------------

    def start_node(self, node: Node) -> None:
        self._begins.append((len(self.order), node.index))
        if self._op_placer is not None:
            self._op_placer.start_node(node)

    def admit(self, tensor: Ptr) -> None:
        if self._op_placer is not None:
            self._op_placer.add_op(tensor)
        elif not self.lib.ggml_backend_dev_supports_op(self.library.cpu, tensor):
            raise UnsupportedOpError(f"the CPU does not run {self.library.describe(tensor)}")

    def owners(self) -> dict[int, int]:
        """The node of each op, by the op's address."""
        ends = [begin for begin, _ in self._begins[1:]] + [len(self.order)]
        return {
            tensor_address(tensor): index
            for (begin, index), end in zip(self._begins, ends, strict=False)
            for tensor in self.order[begin:end]
        }

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU runs the current node."""
        return self._op_placer is None or self._op_placer.current.is_cpu

    def fails(self, case: str) -> bool:
        """Whether the current node's device computes a case of its trial wrongly."""
        verdict = None if self._op_placer is None else self._op_placer.current.verdict
        return verdict is not None and not verdict.takes(case)

    def avoids(self, what: LibraryFault) -> bool:
        """Whether other code runs in place of ggml's own where that is wrong or slow."""
        return what in self.library.avoidances

    # -- nodes -------------------------------------------------------------------------------------------

    def bind_leaf(self, node: Node, tensor: Ptr, device: Device) -> None:
        """A leaf's or weight's data are those of a tensor on a device."""
        self.bind(node, tensor)
        if self._op_placer is not None:
            self._op_placer.add_leaf(node, tensor, device)

    def bind_product(self, node: Node, copy: Ptr, device: Device) -> None:
        """A weight has a copy on a device, for products only."""
        self._products[node.index] = copy, device
        if self._op_placer is not None:
            self._op_placer.add_copy(copy, device)

    def bind(self, node: Node, tensor: Ptr) -> None:
        """A node's data are those of a tensor."""
        self._roots[node.index] = self._latest[node.index] = tensor

    def wrote(self, node: Node, result: Ptr) -> None:
        """A node's storage was written; later readers depend on the result."""
        self._latest[node.storage.index] = result

    def finish(self, node: Node, result: Ptr) -> None:
        """Take a kernel's result as a node's data, in the dtype and shape that core announced."""
        result = self.contiguous(self.cast(result, node.dtype))
        if tuple(result.ne) != four_dimensions(node):
            raise UnsupportedOpError(
                f"{node.op and node.op.name}: ggml's result would be {list(result.ne)}, not {node}"
            )
        # A view that starts where an op's result does can be taken for the result; other views are copied.
        if result.view_offs or view_owner(result).op == self.library.none_op:
            result = self.call("cont", result)
        self.bind(node, result)

    def product_op(
        self, name: str, shape: Sequence[int], operands: Sequence[Ptr], data: Ptr, *, by_ids: bool = False
    ) -> Ptr:
        """A product by native code. On the CPU alone, the product before it fetches its first weights from memory.

        Which weights a product by ids reads first, none before it knows.
        """
        made = self.custom(name, shape, operands, data)
        if self._last_product is not None and not by_ids:
            self._last_product.src[NEXT_WEIGHTS] = operands[0]
        self._last_product = made if self._op_placer is None and not by_ids else None
        return made

    def rows_to_write(self, rows: Ptr, ids: Node) -> Ptr:
        """Rows for the places that ids name; those of the same id are equal, if it may repeat."""
        if ids not in self._repeating:
            return rows
        shape = tuple(rows.ne)[3:0:-1]

        def positions() -> Ptr:
            self.positions.append((self.constant(np.zeros(shape, np.int32), DType.I32), ids))
            return self.positions[-1][0]

        return self.call("get_rows", rows, self.once(self.raw(ids), f"the last of each, {shape}", positions))

    # -- operands ----------------------------------------------------------------------------------------

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
            made = (
                latest,
                self.view(latest, node.dtype, four_dimensions(node), four_strides(node), node.offset),
            )
            self._views[node.index] = made
        return made[1]

    def rows(self, node: Node, dtype: DType | None = None) -> Ptr:
        """A node's tensor with adjoining elements in each row and rows in order, as a dtype if one is named."""
        if dtype is None or node.dtype is dtype:
            return self.with_rows(self.raw(node))
        return self.cast(self.raw(node), dtype)

    def dense(self, node: Node, dtype: DType | None = None) -> Ptr:
        """A node's tensor with all elements adjoining, as a dtype if one is named."""
        if dtype is None or node.dtype is dtype:
            return self.contiguous(self.raw(node))
        return self.cast(self.raw(node), dtype)

    def floats(self, node: Node) -> Ptr:
        """A node's tensor as contiguous f32."""
        return self.dense(node, DType.F32)

    def product(self, node: Node) -> Ptr | None:
        """The copy of a weight that makes products faster, if it lies where the current node runs."""
        copy, device = self._products.get(node.index, (None, None))
        return copy if self._op_placer is None or self._op_placer.current is device else None

    def has_signs(self, weight: Node) -> bool:
        """Whether each code of a q8_0 weight is known to have an opposite."""
        return self._weights is not None and self._weights.has_signs(weight)

    def arrangement(self, weight: Node) -> WeightArrangement | None:
        """The arrangement of the CPU's copy of a weight; None if there is no such copy."""
        return None if self._weights is None else self._weights.arrangement(weight)

    def without_buffer(self, weight: Ptr) -> Ptr:
        """The data of a weight on the CPU, as a tensor of no buffer."""
        made = leaf_tensor(dtype_of(weight), tuple(weight.ne))
        made.data = weight.data
        return self._alias(made)

    def with_more_rows(self, weight: Ptr, rows: int) -> Ptr:
        """A weight on the current node's device with more rows, which hold whatever follows it in memory."""
        made = leaf_tensor(dtype_of(weight), (weight.ne[0], rows))
        made.buffer, made.data, made.extra = weight.buffer, weight.data, weight.extra
        return self._alias(made)

    def _alias(self, made: Ptr) -> Ptr:
        """A tensor outside of the pools that shares the data of one on the current node's device."""
        self.loose.append(made)
        if self._op_placer is not None:
            self._op_placer.add_op(made)
        return made


def lower_graph(g: GgmlBuilder, graph: Graph, calls: Calls, bind: Callable[[Node], None]) -> None:
    """Lower a graph by kernels; `bind` gives a leaf or weight its tensor."""
    for node in graph.nodes:
        _check_extent(node)
        if node.op is None:
            bind(node)
        elif not node.op.view:
            g.start_node(node)
            _lower(g, node, node.op, calls[node.op])


def _check_extent(node: Node) -> None:
    """Refuse sizes that would overflow in C."""
    extents = four_dimensions(node)
    if prod(n or 1 for n in extents) > LARGEST:
        raise MemoryError(f"{node} fits no memory")
    if max(*extents, rows := prod(extents[1:])) > LONGEST:
        raise UnsupportedOpError(
            f"backend 'ggml': {node} has {rows} rows, extents and numbers of rows go up to {LONGEST}; take a smaller tensor, "
            "or a smaller context if it is a cache"
        )


def _lower(g: GgmlBuilder, node: Node, op: Op[Any, Any], call: Callable[..., Ptr]) -> None:
    if op.writes is not None:
        if all(operand.size for operand in node.operands):
            g.wrote(node, call(g, *node.args))
    elif node.size == 0:
        g.bind(node, g.new(node.dtype, four_dimensions(node)))
    elif _has_empty_operand(g, node, op):
        g.bind(node, g.full(node.dtype, four_dimensions(node), WHEN_EMPTY.get(op, 0.0)))
    else:
        g.finish(node, call(g, *node.args))


def _has_empty_operand(g: GgmlBuilder, node: Node, op: Op[Any, Any]) -> bool:
    if op in (ops.mulmat, ops.mulmat_full_prec) and not g.avoids(NO_TERMS):
        return False
    if op in (ops.ssm_scan, ops.delta_rule):
        return bool(node.args[0].size == 0)  # no states to sum
    return op in WHEN_EMPTY and any(operand.size == 0 for operand in node.operands)
