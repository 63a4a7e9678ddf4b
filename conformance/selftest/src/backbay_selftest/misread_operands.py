"""Wrong reads of operands within their storage, and tests of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from backbay import DType, Node, Spec, ops
from backbay.internals import Bytes, KernelPlan, span
from backbay.plugin import Cancel, check_cancel, strided

from .faults import AnyOp, BoundCall, Result
from .fused import Array


def storage_bytes(node: Node, arrays: Sequence[Array]) -> Bytes:
    """All bytes of a node's storage."""
    return arrays[node.storage.index].reshape(-1).view(np.uint8)


def looked(node: Node, arrays: Sequence[Array], strides: tuple[int, ...] | None, offset: int | None) -> Array:
    """The node's array with other strides (None: contiguous) or another offset, where its storage has room."""
    wrong = Spec(node.dtype, node.shape, strides, node.offset if offset is None else offset)
    data = storage_bytes(node, arrays)
    inside = wrong.offset >= 0 and wrong.offset + span(wrong) <= data.nbytes
    return strided(data, wrong) if inside else arrays[node.index]


def instead(arrays: Sequence[Array], node: Node, raw: Array) -> list[Array]:
    """The arrays of all nodes, with one replaced."""
    return [raw if index == node.index else array for index, array in enumerate(arrays)]


def reads(call: BoundCall, op: AnyOp, position: int = 0) -> bool:
    """Whether this op reads the operand of a `read_operand` call, as its operand of this number."""
    return call.reader.op is op and call.reader.args[position] is call.operand


def moves(reader: Node) -> bool:
    """Whether an operand is only moved, as it is stored."""
    return reader.op is not None and reader.op.moves


def numbers_of_first(call: BoundCall, memory: dict[Any, Array], key: object) -> Array:
    """The right numbers of the first call with a key."""
    if key not in memory:
        memory[key] = np.array(call.right())
    return memory[key]


def plain(node: Node) -> bool:
    """Whether a node is f32 and lies in one piece."""
    return node.dtype is DType.F32 and node.strides is None and node.size > 0


def kernels_of(plan: KernelPlan, cancel: Cancel | None) -> Iterator[Node]:
    """The nodes of a plan that run, in order, until the plan is cancelled."""
    with np.errstate(all="ignore"):
        for node in plan.graph.nodes:
            if node.op is not None and not node.op.view:
                check_cancel(cancel)
                yield node


def numbered_modulo(call: BoundCall, count: int) -> Result:
    """Run a node; an addition finds its second operand by its number modulo `count`, if that one has the same size."""
    if call.node.op is not ops.add or (index := call.node.args[1].index) < count:
        return call.right()
    mine, other = call.arrays[index], call.arrays[index % count]
    fits = other.shape == mine.shape and other.dtype == mine.dtype
    return call.right(arrays=[other if i == index and fits else a for i, a in enumerate(call.arrays)])
