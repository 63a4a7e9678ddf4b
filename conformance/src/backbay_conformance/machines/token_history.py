"""The plain history behind a cache: the position in each cell, attention recomputed from it, and the error of attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from backbay import Backend, DType, Level, Op, Spec, ops

from ..checks.traced_call import coarsest, precision_of
from ..numbers.comparison import note, refuse
from ..numbers.encoding import FLOOR, SIGNIFICAND, Array, unit
from ..numbers.number import Cost, Number, block_error


@dataclass
class Cell:
    """A position of one or more sequences; key and value, (heads, d), are exact, with a bound of the storage error."""

    position: int
    sequences: set[int]
    key: Number
    value: Number


@dataclass
class TokenHistory:
    cells: dict[int, Cell] = field(default_factory=dict)

    def of(self, sequence: int) -> dict[int, Cell]:
        """The cells of a sequence by their number, in the order of positions."""
        found = [(n, cell) for n, cell in self.cells.items() if sequence in cell.sequences]
        return dict(sorted(found, key=lambda pair: pair[1].position))

    def next_position(self, sequence: int) -> int:
        return max((cell.position + 1 for cell in self.of(sequence).values()), default=0)

    def sequences(self) -> list[int]:
        return sorted({sequence for cell in self.cells.values() for sequence in cell.sequences})

    def free(self, capacity: int) -> list[int]:
        return [n for n in range(capacity) if n not in self.cells]

    def remove(self, sequence: int, low: int, high: int) -> None:
        """Remove a sequence from its cells of positions [low, high); cells without a sequence become free."""
        for cell in self.of(sequence).values():
            if low <= cell.position < high:
                cell.sequences.discard(sequence)
        self.cells = {n: cell for n, cell in self.cells.items() if cell.sequences}

    def seen_by(self, sequence: int, position: int, window: int) -> list[int]:
        """The cells that a token attends to: itself and its past, within the window."""
        low = position - window if window else -1
        return [n for n, cell in self.of(sequence).items() if low < cell.position <= position]


def stored(value: Number, dtype: DType) -> Number:
    """(heads, d) with the error of storing it as a dtype."""
    if dtype in SIGNIFICAND:
        lost = unit(dtype) * np.abs(value.value) + FLOOR[dtype]
    else:
        rows = value.value.reshape(-1)
        lost = block_error(rows, dtype).reshape(value.shape) + unit(DType.F16) * np.abs(value.value)
    # An existing error may move a value across a rounding boundary, and so grow by one step.
    return Number(value.value, value.error * (1 + 2.0**-7) + lost, value.cost)


def rotated(x: Number, position: float, dim: int, base: float, mode: str) -> Number:
    """Rotary embedding of (heads, d) at one position, in float64."""
    first, second, cos, sin, unsure = turn(position, dim, base, mode)
    value, error = x.value.copy(), x.error.copy()
    a, b = x.value[:, first], x.value[:, second]
    value[:, first], value[:, second] = a * cos - b * sin, a * sin + b * cos
    passed = np.hypot(error[:, first], error[:, second]) + np.hypot(a, b) * unsure
    error[:, first], error[:, second] = passed, passed
    return Number(value, error + 4 * x.cost.step * np.abs(value), x.cost)


@lru_cache(4096)
def turn(position: float, dim: int, base: float, mode: str) -> tuple[Array, Array, Array, Array, Array]:
    """Of a rotation at one position: both elements of each pair, the cosine and sine, and the error of the angle."""
    pairs = np.arange(dim // 2)
    angle = position * base ** (-2.0 * pairs / dim)
    first, second = (2 * pairs, 2 * pairs + 1) if mode == "normal" else (pairs, pairs + dim // 2)
    # Angles computed in float32 have an error of some roundoffs.
    unsure = (np.abs(angle) + 2) * 8 * unit(DType.F32)
    return first, second, np.cos(angle), np.sin(angle), unsure


def attend(query: Number, cells: list[Cell], scale: float) -> Number:
    """Attention of one token, (heads, d), over the cells that it sees; the result is (heads, d)."""
    groups = query.shape[0] // cells[0].key.shape[0]
    key, value = (  # (history, heads, d)
        stacked(parts, groups) for parts in ([cell.key for cell in cells], [cell.value for cell in cells])
    )
    scores = query.activation().einsum("hd,nhd->hn", key.weight(), query.shape[-1]) * scale
    top = scores.value.max(-1, keepdims=True)
    with np.errstate(all="ignore"):  # a bound may be infinite if storage lost much
        powers = (scores - top).exp()
        weights: Number = powers / powers.sum()
    mean = weights.activation().einsum("hn,nhd->hd", value.weight(), len(cells))
    return mean.within((value.value - value.error).min(0), (value.value + value.error).max(0), len(cells))


def stacked(parts: list[Number], groups: int) -> Number:
    """(history, heads, d) from numbers of shape (kv_heads, d)."""
    values, errors = np.array([part.value for part in parts]), np.array([part.error for part in parts])
    whole = Number(values, errors, parts[0].cost)
    return whole.moved(lambda a: np.repeat(a, groups, axis=1))


def number(value: Array, cost: Cost) -> Number:
    return Number(np.asarray(value, np.float64), np.zeros(np.shape(value)), cost)


def require_close(got: Array, expected: Number, what: str) -> None:
    """Raise Fault unless each element is within its bound, plus the rounding of the result to f32."""
    bound = expected.error + unit(DType.F32) * (np.abs(expected.value) + 1e-30)
    note("cache", expected.value, bound)
    wrong = ~(np.abs(got - expected.value) <= bound)
    refuse(wrong, expected.value, got, "cache", bound=bound, what=f"{what}: ")


def attention_cost(backend: Backend, key_type: DType, value_type: DType) -> Cost:
    key, value = Spec(key_type, (32, 1, 8)), Spec(value_type, (32, 1, 8))
    query, weights = Spec(DType.F32, (32, 1, 1)), Spec(DType.F32, (8, 1, 1))
    attention = ops.scaled_dot_product_attention
    fused = backend.supports(attention, [query, key, value, None, None, None]).level is Level.KERNEL
    used: list[tuple[Op[Any, Any], list[Spec | None]]] = [
        (ops.mulmat_full_prec, [key, query]),
        (ops.mulmat, [Spec(DType.F32, (8, 32)), weights]),
        (ops.softmax, [weights]),
    ]
    if fused:
        used = [(attention, [query, key, value, None, None, None])]
    declared = [precision_of(backend, op, specs) for op, specs in used]
    return Cost.of(coarsest(declared), unit(DType.F32))  # results between ops are rounded to f32
