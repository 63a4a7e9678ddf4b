"""A run of few shapes, for engines that compile each graph: the calls of a case share a few structures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from backbay import DType

from ...draw.choices import shaped
from ...draw.draw import MODES, ROUND, Draw
from ...draw.operand import Operand
from ...suite.case import CASES, Call
from ...suite.lab import SCENARIOS
from ..selection import Item

LEAST, MOST = 2, 6
"""The structures of a case."""
ENOUGH_NEW = 25
"""The weight of the new features that a further structure needs."""
LARGEST = 20000
"""The most elements of a structure, which many calls have."""


def with_few_shapes(items: Iterable[Item], seed: int) -> list[Item]:
    """The items with the structures of a seed; a scenario has each of its structures once.

    All calls of a case come in a row, so that one worker compiles its graphs.
    """
    found = [each for item in items for each in _with_structure(item, seed)]
    return sorted(found, key=lambda item: item.group)


def _with_structure(item: Item, seed: int) -> Iterator[Item]:
    key = item.profile, item.name
    if key in CASES:
        own = structures(*key, seed)
        yield replace(item, structure=own[item.turn // len(MODES) % len(own)])  # each comes in all modes
    elif item.turn < SCENARIOS[key].structures:
        yield replace(item, structure=seed * ROUND + item.turn)


@cache
def structures(profile: str, name: str, seed: int) -> Sequence[int]:
    """The turns of a case whose calls have the most features together; another seed has other turns."""
    left: dict[int, Mapping[str, int]] = {}
    for turn in range(seed * ROUND, seed * ROUND + ROUND):
        source = shaped(lambda n, by_turn: by_turn or 0, f"{profile}/{name}/{turn}", 0)
        call = CASES[profile, name].draw(Draw(source, turn))
        if sum(prod(operand.shape) for operand in call.operands()) <= LARGEST:
            left[turn] = dict(features(call))
    chosen: list[int] = []
    while len(chosen) < MOST:
        best = max(left, key=lambda turn: sum(left[turn].values()))
        new = left.pop(best)
        if len(chosen) >= LEAST and sum(new.values()) < ENOUGH_NEW:
            break
        chosen.append(best)
        left = {turn: {key: own[key] for key in own.keys() - new} for turn, own in left.items()}
    return chosen


def features(call: Call) -> Iterator[tuple[str, int]]:
    """What a compiled kernel may depend on, with weights: dtypes, layouts, extents, and attributes.

    A call without elements has only its attributes.
    """
    empty = any(0 in operand.shape for operand in call.operands())
    seen: list[Operand] = []
    for parameter, value in zip(call.op.parameters, call.args, strict=True):
        found: Iterable[tuple[str, int]]
        if isinstance(value, Operand):
            found = [("empty", 3)] if empty else of_operand(value, seen)
            seen.append(value)
        elif isinstance(value, tuple) and any(isinstance(each, Operand) for each in value):
            found = [(f"{len(value)} operands", 3)]
        else:
            found = [of_attribute(value)]
        yield from ((f"{parameter.name} {feature}", weight) for feature, weight in found)


def of_operand(operand: Operand, seen: Sequence[Operand]) -> Iterator[tuple[str, int]]:
    """The features of an operand, after those that were seen; a large extent has those of smaller ones, too."""
    yield str(operand.dtype), 2 if seen else 10
    for kind in [step.name.partition("(")[0] for step in operand.layout.steps] or ["contiguous"]:
        yield kind, 2
    yield f"{len(operand.shape)} dimensions", 1
    for dim, extent in enumerate(operand.shape):
        yield from ((f"{dim} has {bits} bits", 1) for bits in range(2, extent.bit_length() + 1))
        yield f"{dim} rest {extent % 2}", 1
    if operand in seen:
        yield "again", 8
    elif seen:
        yield str([a == b for a, b in zip(operand.shape, seen[0].shape, strict=False)]), 2


def of_attribute(value: object) -> tuple[str, int]:
    if isinstance(value, DType):
        return str(value), 10
    if isinstance(value, float):
        return f"sign {np.sign(value)}", 3
    if type(value) is int:
        return f"size {value if abs(value) < 4 else 'large'}", 3
    return str(value), 6
