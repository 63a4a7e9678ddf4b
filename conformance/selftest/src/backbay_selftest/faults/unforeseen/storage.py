"""Kept weights, types of caches, and memory read late."""

from __future__ import annotations

import numpy as np

from backbay import CacheConfig, DType, Graph, Node, ops
from backbay.internals import KernelPlan
from backbay.plugin import GRAPH, HostBuffer, encoding_gap, strided

from ...fault import FaultKind, InterceptedCall, Result, fault, named, reads
from ...fused import Array

ARITHMETIC = dict(
    zip(named("add", "sub", "mul", "div"), (np.add, np.subtract, np.multiply, np.divide), strict=True)
)


PIECE = 1 << 15
"""Bytes that a copy moves at once."""


class CountedBuffer(HostBuffer):
    """Memory that counts what the host writes into it."""

    writes = 0

    def write(self, data: Array) -> None:
        self.writes += 1
        super().write(data)

    def zero(self) -> None:
        self.writes += 1
        super().zero()


@fault(FaultKind.RACES, "allocate", "read_operand")
def a_weight_is_packed_again_only_if_the_host_writes_it(call: InterceptedCall) -> Result:
    """Large leaves are rearranged for products once; what another graph writes into them is not seen."""
    if call.name == "allocate":
        return CountedBuffer(call.spec.nbytes, call.backend.params.debug)
    numbers, operand = call.right(), call.operand
    product = reads(call, ops.mulmat) and operand.rank == 2
    if not product or operand.leaf is None or operand.kind != "input" or operand.size < 4096:
        return numbers
    buffer = operand.leaf.buffer
    packed = vars(buffer).setdefault("packed", {})
    if packed.get("writes") != buffer.writes:
        packed.update(writes=buffer.writes, numbers=np.array(numbers))
    return packed["numbers"]


@fault(FaultKind.CLAIMS, "cache_config")
def a_cache_of_a_type_that_nothing_writes_is_offered(call: InterceptedCall) -> Result:
    """Rows of 256 quantized elements, which `set_rows` refuses."""
    config: CacheConfig = call.right()
    return CacheConfig(dtypes=(*config.dtypes, DType.Q5_K))


@fault(FaultKind.ALIASING, "data_to_write", ops.copy)
def an_overlapping_copy_is_read_row_by_row(call: InterceptedCall) -> Result:
    """A copy whose destination begins at or before its source works row by row, and reads rows that it has written."""
    if call.name == "copy":
        x, dst = call.x, call.dst
        if x.shape != dst.shape or x.ndim < 2 or not np.shares_memory(x, dst):
            return call.right()
        for row in np.ndindex(dst.shape[:-1]):
            dst[row] = x[row]
        return dst
    return _unread(call, call.target.offset <= call.source.offset)


def _unread(call: InterceptedCall, near: bool) -> Result:
    """The source of a copy itself if it is part of the same leaf and alike, and all that is written if not."""
    source, target = call.source, call.target
    alike = source.dtype is target.dtype and source.shape == target.shape
    return call.raw if call.whole and near and alike and source.storage is target.storage else call.right()


@fault(FaultKind.ALIASING, "data_to_write", ops.copy)
def an_overlapping_copy_goes_piece_by_piece(call: InterceptedCall) -> Result:
    """A copy to a later part of its own leaf goes in pieces of 32 KiB, each of which is read before it is written."""
    if call.name != "copy":
        return _unread(call, call.source.is_contiguous and call.target.is_contiguous)
    x, dst = call.x, call.dst
    whole = x.flags.c_contiguous and dst.flags.c_contiguous and x.shape == dst.shape
    if not whole or not np.shares_memory(x, dst):
        return call.right()
    source, target, step = x.reshape(-1), dst.reshape(-1), PIECE // x.itemsize
    for low in range(0, x.size, step):
        target[low : low + step] = source[low : low + step].copy()
    return dst


@fault(FaultKind.ALIASING, "run_node")
def arithmetic_in_place_reads_a_part_of_itself_late(call: InterceptedCall) -> Result:
    """A result that nobody reads again is overwritten row by row, also where the other operand is a part of it."""
    node, arrays = call.node, call.arrays
    if node.op not in ARITHMETIC or not overwrites(node, call.graph):
        call.right()
        return
    x, t2 = node.args
    memory = np.ascontiguousarray(arrays[x.storage.index]).reshape(-1).view(np.uint8).copy()
    whole, part = strided(memory, x), strided(memory, t2)
    rows = part.reshape((1,) * (whole.ndim - part.ndim) + part.shape)
    for at in np.ndindex(whole.shape[:-1]):
        row = rows[tuple(i % n for i, n in zip(at, rows.shape[:-1], strict=True))]
        times = whole.shape[-1] // row.size
        whole[at] = ARITHMETIC[node.op](whole[at].astype(np.float64), np.tile(row, times))
    arrays[node.index][...] = whole


def overwrites(node: Node, graph: Graph) -> bool:
    """Whether arithmetic is on a result that ends with it, and on a part of that result."""
    x, t2 = node.args
    same = x.storage is t2.storage and x.dtype is t2.dtype is node.dtype is DType.F32
    if not same or x.storage.op is None or x.rank < t2.rank or not 0 < t2.size < x.size:
        return False
    later = (operand for other in graph.nodes[node.index + 1 :] for operand in other.operands)
    return all(reader.storage is not x.storage for reader in (*graph.outputs, *later))


# -- a fourth planting -------------------------------------------------------------------------------------


@fault(FaultKind.OVERFLOW, ops.set_rows)
def rows_of_one_element_end_with_the_first_block(call: InterceptedCall) -> Result:
    """Rows of one element, as of values that are kept permuted, are written by one block of 256 threads."""
    if call.x.shape[-1] > 1 or call.src.ndim < 2:
        return call.right()
    return call.right(src=call.src[..., :256, :], ids=call.ids[..., :256])


@fault(FaultKind.CLAIMS, "compile", "run_node")
def a_cast_that_nothing_encodes_leaves_zeros(call: InterceptedCall) -> Result:
    """A cast to a dtype that the backend cannot quantize to is taken, and writes nothing."""
    if call.name == "compile":
        return KernelPlan(call.backend, call.graph)
    if call.node.op is ops.cast and encoding_gap(call.node.dtype):
        call.arrays[call.node.index][...] = 0
        return None
    return call.right()


@fault(FaultKind.CLAIMS, "compile")
def a_refused_graph_stays_booked(call: InterceptedCall) -> Result:
    """Memory is booked before a graph is checked, and not given back when it is refused."""
    nodes = call.graph.nodes
    if any(node.op is ops.cast and encoding_gap(node.dtype) for node in nodes):
        nbytes = sum(node.nbytes for node in nodes if node.op and not node.is_view)
        call.backend.ledger.take(GRAPH, nbytes, lambda: None)
    return call.right()
