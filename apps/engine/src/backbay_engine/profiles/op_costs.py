"""The work of an op, and the rates at which this machine can do it at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

from backbay import Node, ops

PARALLEL_BYTES = 1 << 27  # many times the caches of a processor
SIDE = 1024  # of a matrix
PASSES, SECONDS = 5, 1.0  # passes at least, unless they take so long


@dataclass(frozen=True)
class PeakRates:
    """Bytes that are read, and multiplications that are made, in a second."""

    reading: float
    multiplying: float

    def seconds(self, nbytes: float, products: float) -> float:
        """The least time for this work."""
        return max(nbytes / self.reading, products / self.multiplying)


def measure_peak_rates(threads: int) -> PeakRates:
    """The rates of the fastest passes, with some threads; NumPy multiplies float32 with as many as it takes."""
    parts = [np.ones(PARALLEL_BYTES // 8 // threads) for _ in range(threads)]
    matrix = np.ones((SIDE, SIDE), np.float32)
    with ThreadPoolExecutor(threads) as pool:
        reading = PARALLEL_BYTES / _fastest(lambda: list(pool.map(np.max, parts)))
    return PeakRates(reading, SIDE**3 / _fastest(lambda: matrix @ matrix))


def _fastest(work: Callable[[], object]) -> float:
    begun, found = perf_counter(), list[float]()
    while len(found) < PASSES and (not found or perf_counter() - begun < SECONDS):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return min(found)


# -- ops: the bytes that they read and write, and their multiplications ----------------------------------


def op_label(node: Node) -> str:
    """The op of a node, with the dtype of its weight, if it multiplies one."""
    assert node.op is not None
    weight = next((operand for operand in node.operands if operand.kind == "parameter"), None)
    is_product = node.op in (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
    return f"{node.op.name} {weight.dtype}" if is_product and weight is not None else node.op.name


def layer_label(node: Node, blocks: int) -> str:
    where = node.placement.layer
    if where is None:
        return "input" if node.placement.host else "no layer"
    return "output" if where >= blocks else str(where)


def bytes_moved(node: Node) -> int:
    """The bytes of all operands, each once, and of the result; only the chosen rows and experts of a table."""
    return sum(_parts(node))


def _parts(node: Node) -> Iterator[int]:
    op = node.op
    assert op is not None
    written = node.args[op.writes] if op.writes is not None else None
    moved = 0  # elements
    for operand in {operand.index: operand for operand in node.operands}.values():
        if operand is written:
            continue
        if op is ops.rows and operand is node.args[0]:
            yield _share(operand, node.size)
        elif op is ops.mulmat_id and operand is node.args[0]:
            yield _share(operand, operand.size * min(1, node.args[2].size / max(1, operand.dim(2))))
        else:
            yield operand.nbytes
        if op.ids is None or operand is not node.args[op.ids]:
            moved = max(moved, operand.size)
    yield node.nbytes if written is None else _share(node, moved)


def _share(node: Node, elements: float) -> int:
    """The bytes of so many elements of a node."""
    return int(node.nbytes * min(1, elements / node.size)) if node.size else 0


def multiplications(node: Node) -> int:
    """The multiplications of a matrix product, or of attention; other ops count as none."""
    if node.op in (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id):
        return node.size * int(node.args[0].dim(0))
    if node.op is ops.scaled_dot_product_attention:
        query, key, value = node.args[:3]
        cells = max(1, key.size // max(1, key.dim(0)))  # of all heads of keys
        scores = prod(query.dim(n) for n in (1, 2, 3)) * key.dim(2)
        return int(scores * (key.dim(0) + value.size // cells))
    return 0
