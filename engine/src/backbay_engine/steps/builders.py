"""Steps for each purpose: of a prompt, of sequences that go on, of whole texts, and the largest ones there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .step import Ints, Step


def prompt_step(tokens: Ints, *, sequence: int = 0, first: int = 0) -> Step:
    """The step of one sequence's tokens from position `first` on, of which all answer."""
    n = len(tokens)
    positions = np.arange(first, first + n, dtype=np.int32)
    return Step(tokens, positions, np.full(n, sequence, np.int32), np.arange(n, dtype=np.int32))


def next_step(ends: Sequence[int], sequences: Sequence[int], spans: Sequence[int] | None = None) -> Step:
    """A token 0 of each of `sequences`, in this order, where those have `ends`; all answer."""
    reached, positions = list(ends), []
    for sequence in sequences:
        positions.append(reached[sequence])
        reached[sequence] += 1
    n = len(sequences)
    return Step(
        np.zeros(n, np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.arange(n, dtype=np.int32),
        None if spans is None else np.array(spans, np.int32),
    )


def text_steps(texts: Sequence[Sequence[int]], room: int) -> Iterator[Step]:
    """Steps of whole texts, as many as there is room for, each a sequence of its own, whose first tokens answer."""
    taken: list[Sequence[int]] = []
    for ids in texts:
        if taken and sum(map(len, taken)) + len(ids) > room:
            yield _text_step(taken)
            taken = []
        taken.append(ids)
    yield _text_step(taken)


def _text_step(texts: Sequence[Sequence[int]]) -> Step:
    lengths = [len(ids) for ids in texts]
    return Step(
        np.concatenate([np.asarray(ids, np.int32) for ids in texts]),
        np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        np.cumsum([0, *lengths[:-1]], dtype=np.int32),
    )


def worst_steps(batch: int, parallel: int, context: int, *, decoding: bool) -> list[Step]:
    """What fills the batch: a prompt, and beside it a token of every sequence; or texts of one token, to be embedded."""
    if not decoding:
        each, zeros = np.arange(batch, dtype=np.int32), np.zeros(batch, np.int32)
        return [Step(zeros, zeros, each, each)]
    outputs = np.arange(parallel, dtype=np.int32)
    positions = np.arange(batch, dtype=np.int32) % context  # which a model may have learned one by one
    steps = [Step(np.zeros(batch, np.int32), positions, np.zeros(batch, np.int32), outputs)]
    if batch > parallel:
        nothing = np.zeros(parallel, np.int32)
        steps.append(Step(nothing, nothing, np.arange(parallel, dtype=np.int32), outputs))
    return steps
