"""Prompts that are cut anywhere, on a backend: results of a cache's layer against a rule that is followed token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Spec, Tensor
from backbay.ops import mulmat
from backbay_conformance.plugin import Draw, Fault, Lab

from ..cache import BoundCache, Cache, CacheSizes
from ..roundoffs import ROUNDOFFS
from ..steps.step import next_step

Array: TypeAlias = NDArray[Any]
Bound = TypeVar("Bound", bound=BoundCache)
SEQUENCES, STEPS, CAPACITY = 3, 5, 1 << 10
COUNTS = (1, 1, 2, 5, 16, 33, 65, 70)  # tokens of each sequence in a step


class Rule(ABC, Generic[Bound]):
    """A rule with random sizes. Arrays are reversed: (sequences, tokens, heads, ..).

    state      the shape of a sequence's state before its first token
    roundoffs  by how many a result may be off, relative to the largest
    """

    check: str
    state: tuple[int, ...]
    roundoffs: int

    @abstractmethod
    def new_cache(self) -> Cache:
        """A cache for one layer."""

    @abstractmethod
    def inputs(self, rng: np.random.Generator, sequences: int, tokens: int) -> list[Array]:
        """The inputs of the tokens of a step."""

    @abstractmethod
    def trace(self, ctx: Context, bound: Bound, inputs: Sequence[Tensor]) -> Tensor:
        """The outputs, (value, heads, tokens, sequences); keeps the states."""

    @abstractmethod
    def follow(self, state: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
        """The output of one token of one sequence, (heads, value), and the state after it, in float64."""


def cut_prompts(lab: Lab, draw: Draw, rule: Rule[Any]) -> None:
    """Steps of one to three sequences, of one token or many, some of them shared or rolled back."""
    backend, cache = lab.backend, rule.new_cache()
    dtypes = backend.cache_config().dtypes
    dtype = DType.F32 if DType.F32 in dtypes else dtypes[0]
    cache.open(backend, CacheSizes(SEQUENCES, CAPACITY, CAPACITY, dtype))
    unit = rule.roundoffs * _roundoff(backend, DType.F32 if cache.is_uniform else dtype)  # states are f32
    known: list[dict[int, Array]] = [{0: np.zeros(rule.state)} for _ in range(SEQUENCES)]
    ends = [0] * SEQUENCES
    try:
        for _ in range(STEPS):
            source, target = draw.below(SEQUENCES), draw.below(SEQUENCES)
            if draw.below(3) == 0:
                ends[target] = cache.last_resumable(source, draw.below(1 + ends[source]))
                cache.copy_prefix(source, target, ends[target])
                known[target] = dict(known[source])
            count = COUNTS[draw.below(len(COUNTS))]
            chosen = sorted({draw.below(SEQUENCES) for _ in range(2)})
            step = next_step(ends, [n for n in chosen for _ in range(count)])
            if draw.below(4) == 0:
                cache.plan(step)
                cache.rollback(step)
            rng = np.random.default_rng(draw.below(1 << 30))
            inputs = rule.inputs(rng, len(chosen), count)
            expected = _followed(rule, known, ends, chosen, inputs)
            with backend.new_context() as ctx:
                bound = cache.bind(ctx, cache.plan(step))
                y = rule.trace(ctx, bound, [leaf_of(ctx, each) for each in inputs])
                ctx.forward(y).compute(y)
                found = y.floats().reshape(expected.shape)
            draw.note(f"{count} tokens of {chosen} at {[ends[n] for n in chosen]}")
            _require_near(found, expected, unit, rule.check)
            for n in chosen:
                ends[n] += count
    finally:
        cache.close()


def _followed(
    rule: Rule[Any],
    known: list[dict[int, Array]],
    ends: Sequence[int],
    chosen: Sequence[int],
    inputs: Sequence[Array],
) -> Array:
    """The outputs by the rule as it is written, (sequences, tokens, heads, value); notes the states."""
    outputs = []
    for row, n in enumerate(chosen):
        state = known[n][ends[n]]
        of_tokens = [each.astype(np.float32).astype(np.float64) for each in inputs if each.ndim > 2]
        for t in range(of_tokens[0].shape[1]):
            y, state = rule.follow(state, [each[row, t] for each in of_tokens])
            known[n][ends[n] + t + 1] = state
            outputs.append(y)
    return np.array(outputs).reshape(len(chosen), -1, *outputs[0].shape)


def leaf_of(ctx: Context, array: Array) -> Tensor:
    """An input with the array's numbers in f32; its shape is the array's, reversed."""
    return ctx.input().from_floats(np.ascontiguousarray(array, np.float32), *array.shape[::-1])


def _roundoff(backend: Backend, dtype: DType) -> float:
    """The coarsest roundoff of a product in f32, or of the cache's type."""
    declared = backend.precision(mulmat, [Spec(DType.F32, (8, 8)), Spec(DType.F32, (8, 8))])
    kinds = (DType.F32, declared.activation, declared.accumulate, declared.weight, dtype)
    return max(ROUNDOFFS.get(kind, 0.0) for kind in kinds)


def _require_near(found: Array, expected: Array, unit: float, check: str) -> None:
    """Raise Fault unless each element is within `unit`, relative to the largest expected element or to 1."""
    bound = unit * max(1.0, float(np.abs(expected).max()))
    off = np.abs(found - expected)
    if not (off <= bound).all():
        at = tuple(map(int, np.unravel_index(np.nan_to_num(off, nan=np.inf).argmax(), off.shape)))
        raise Fault(
            check, f"at {at[::-1]} expected {expected[at]:.7g} within {bound:.3g}, got {found[at]:.7g}"
        )
