"""Steps for each purpose: a prompt, the next tokens of sequences, whole texts, and the largest steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .step import Ints, Step


def prompt_step(tokens: Ints, *, sequence: int = 0, first: int = 0) -> Step:
    """Tokens of one sequence from position `first` on; every token is an output."""
    n = len(tokens)
    positions = np.arange(first, first + n, dtype=np.int32)
    return Step(tokens, positions, np.full(n, sequence, np.int32), np.arange(n, dtype=np.int32))


def next_step(ends: Sequence[int], sequences: Sequence[int], spans: Sequence[int] | None = None) -> Step:
    """Token 0 for each of `sequences`, in this order, at the positions after `ends`; every token is an output."""
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
    """Whole texts, as many in a step as fit; each text is a sequence, and its first token is an output."""
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


def worst_steps(
    batch: int, parallel: int, context: int, *, decoding: bool, uniform: bool = False, guessed: int = 0
) -> list[Step]:
    """The largest steps: for decoding, a full prompt and a token of every sequence; for embedding, texts of one token.

    uniform    a cache takes equally many tokens of each sequence in a step: also a full step of all sequences
    guessed    tokens of a step that verifies guesses, all of them outputs; 0: there is none
    """
    if not decoding:
        each, zeros = np.arange(batch, dtype=np.int32), np.zeros(batch, np.int32)
        return [Step(zeros, zeros, each, each)]
    outputs = np.arange(parallel, dtype=np.int32)
    positions = np.arange(batch, dtype=np.int32) % context  # a model may have a table of positions
    steps = [Step(np.zeros(batch, np.int32), positions, np.zeros(batch, np.int32), outputs)]
    if batch > parallel:
        nothing = np.zeros(parallel, np.int32)
        steps.append(Step(nothing, nothing, np.arange(parallel, dtype=np.int32), outputs))
    if (n := min(guessed, batch)) > 1:
        each = np.arange(n, dtype=np.int32)
        steps.append(Step(np.zeros(n, np.int32), positions[:n], np.zeros(n, np.int32), each))
    if uniform and (share := batch // parallel) > 1:
        zeros = np.zeros(parallel * share, np.int32)
        steps.append(Step(zeros, np.tile(positions[:share], parallel), np.repeat(outputs, share), outputs))
    return steps
