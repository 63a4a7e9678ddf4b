"""One forward pass: the tokens that go through the model together, and steps for each purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class MediaRows:
    """Rows in a step, and the tokens whose embeddings they replace."""

    values: Floats  # (rows, width)
    tokens: Ints  # (rows,), indices in the step

    @property
    def room(self) -> int:
        """The rows that a traced step holds for them: a power of two, so that few shapes serve all steps."""
        return 1 << (len(self.tokens) - 1).bit_length()

    @classmethod
    def joined(cls, rows: Sequence[MediaRows]) -> MediaRows | None:
        """All of these rows; None if there are none."""
        if not rows:
            return None
        values, tokens = ([getattr(each, name) for each in rows] for name in ("values", "tokens"))
        return cls(np.concatenate(values), np.concatenate(tokens))


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepAdapters:
    """The adapters of each token of a step, by their places among those of the model; a scale of 0 for none."""

    places: Ints  # (n, most)
    scales: Floats  # (n, most)

    @property
    def most(self) -> int:
        """The most adapters of a token."""
        return int(self.places.shape[1])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The tokens of one forward pass, of one or several sequences, and which of them are outputs."""

    tokens: Ints  # (n,)
    positions: Ints  # (n,), position of each token in its sequence
    sequences: Ints  # (n,), sequence of each token
    outputs: Ints  # (k,), indices of the tokens whose results are wanted
    spans: Ints | None = None  # (n,), number of each token's span, or -1; tokens of a span see each other
    rows: MediaRows | None = None
    axes: Ints | None = None  # (3, n), M-RoPE's positions: time, row and column; None: all are `positions`
    adapters: StepAdapters | None = None
    answering: Collection[int] = ()  # sequences that go on with an answer: no prompt ends in them

    @property
    def size(self) -> int:
        return len(self.tokens)


def step_of(parts: Sequence[tuple[int, int, Sequence[int] | Ints]], outputs: Ints) -> Step:
    """The next tokens of sequences, each with its number and the position of its first token."""
    return Step(
        np.concatenate([np.asarray(ids, np.int32) for _, _, ids in parts]),
        np.concatenate([np.arange(first, first + len(ids), dtype=np.int32) for _, first, ids in parts]),
        np.concatenate([np.full(len(ids), sequence, np.int32) for sequence, _, ids in parts]),
        outputs,
    )


def prompt_step(tokens: Ints, *, sequence: int = 0, first: int = 0) -> Step:
    """Tokens of one sequence from position `first` on; every token is an output."""
    return step_of([(sequence, first, tokens)], np.arange(len(tokens), dtype=np.int32))


def next_step(ends: Sequence[int], sequences: Sequence[int]) -> Step:
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
    )


def text_groups(lengths: Sequence[int], room: int) -> Iterator[slice]:
    """Groups of texts of these lengths, as many in each as fit into a step."""
    begin = taken = 0
    for n, length in enumerate(lengths):
        if n > begin and taken + length > room:
            yield slice(begin, n)
            begin, taken = n, 0
        taken += length
    yield slice(begin, len(lengths))


def text_step(texts: Sequence[Sequence[int]]) -> Step:
    """Whole texts; each is a sequence, and its first token is an output."""
    begins = np.cumsum([0, *(len(ids) for ids in texts[:-1])], dtype=np.int32)
    return step_of([(n, 0, ids) for n, ids in enumerate(texts)], begins)


def largest_steps(
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


def full_of_rows(step: Step, width: int, *, spans: bool) -> Step:
    """A step whose tokens are all replaced by rows; with `spans`, its tokens may see each other."""
    rows = MediaRows(np.zeros((step.size, width), np.float32), np.arange(step.size, dtype=np.int32))
    return replace(step, rows=rows, spans=np.full(step.size, -1, np.int32) if spans else None)
