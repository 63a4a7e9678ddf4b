"""Scripts: sequences of steps as data, which run on any backend, and in other libraries for the expected results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import DType
from backbay_engine.cache import CacheSizes, EncoderDecoderCache
from backbay_engine.models import Model
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.steps.step import Step
from backbay_engine.steps.tokens import encoder_tokens

VOCABULARY = 64
SEQUENCES = 3
CAPACITY = 256


@dataclass(frozen=True)
class Run:
    """One step with the next tokens of sequences."""

    parts: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Copy:
    """Let a sequence share the prefix of another one."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Remove:
    """Remove positions; later ones move down."""

    sequence: int
    begin: int
    end: int


Parts: TypeAlias = Sequence[tuple[int, Sequence[int]]]
Action: TypeAlias = Run | Copy | Remove


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist())


def one(sequence: int, given: Sequence[int]) -> Run:
    return Run(((sequence, tuple(given)),))


def steps(sequence: int, given: Sequence[int], *sizes: int) -> list[Run]:
    """The tokens in steps of these sizes, and the rest one by one."""
    ends = np.cumsum([0, *sizes, *[1] * (len(given) - sum(sizes))]).tolist()
    return [one(sequence, given[begin:end]) for begin, end in pairwise(ends)]


SCRIPTS: dict[str, list[Action]] = {
    "prompt": [one(0, tokens(48, 1))],
    "steps": [*steps(0, tokens(44, 2), 7, 20, 11)],
    "parallel": [
        Run(((0, tokens(21, 3)), (1, tokens(5, 4)), (2, tokens(17, 5)))),
        Run(((1, tokens(19, 6)), (0, tokens(3, 7)))),
        *[Run(((2, (n,)), (0, (n + 1,)), (1, (n + 2,)))) for n in range(3)],
    ],
    "shift": [one(0, tokens(40, 8)), one(1, tokens(9, 9)), Remove(0, 4, 12), *steps(0, tokens(7, 10), 4)],
    "prefix": [one(0, tokens(30, 11)), Copy(0, 1, 13), *steps(1, tokens(20, 12), 18), one(0, tokens(2, 13))],
}
KIND_SCRIPTS: dict[str, list[Action]] = {
    "short": [
        Run(((0, tokens(11, 30)), (1, tokens(22, 31)))),
        Run(((1, tokens(3, 32)), (0, tokens(2, 33)))),
        Copy(1, 2, 9),
        Run(((2, tokens(2, 34)), (0, tokens(1, 35)))),
    ],
    "long": [one(0, tokens(150, 36))],
    "cut": [*steps(0, tokens(150, 36), 1, 16, 64, 3, 61)],
    "parallel": SCRIPTS["parallel"],
    "prefix": SCRIPTS["prefix"],
}
"""Scripts that every kind of model can run, recurrent ones included."""


def answers(backend: backbay.Backend, model: Model, script: str, dtype: DType) -> NDArray[np.float32]:
    """A model's results for a script, or embeddings of the texts; with a cache of this dtype if the backend can."""
    if script == "texts":
        return embeddings(model, TEXTS)
    held = dtype if dtype in backend.cache_config().dtypes else DType.F32
    return run_script(backend, model, {**SCRIPTS, **KIND_SCRIPTS}[script], held)


def run_script(
    backend: backbay.Backend, model: Model, script: Sequence[Action], dtype: DType
) -> NDArray[np.float32]:
    """All logits of a script's tokens, in order."""
    cache = model.new_cache()
    assert cache is not None
    cache.open(backend, CacheSizes(SEQUENCES, capacity=CAPACITY, batch=64, dtype=dtype))
    kept, ends, found = StepCache(model, cache), [0] * SEQUENCES, []
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    text = encoder_tokens(TEXTS[0]) if isinstance(cache, EncoderDecoderCache) else []
    try:
        for action in script:
            match action:
                case Copy(source, target, length):
                    ends[target] = cache.last_resumable(source, length + len(text))
                    cache.copy_prefix(source, target, ends[target])
                    held[target] = held[source][: length + len(text)]
                    if rest := held[target][ends[target] :]:
                        kept.run(step_of(((target, rest),), ends))
                case Remove(sequence, begin, end):
                    cache.remove(sequence, begin, end)
                    ends[sequence] -= end - begin
                case Run(parts):
                    if text:
                        parts = [(n, given if held[n] else [*text, *given]) for n, given in parts]
                    for sequence, given in parts:
                        held[sequence] = [*held[sequence], *given]
                    together = groups(parts, uniform=cache.is_uniform)
                    found += [kept.run(step_of(group, ends)) for group in together]
    finally:
        kept.close()
        cache.close()
    return np.concatenate(found)


def groups(parts: Parts, *, uniform: bool) -> list[Parts]:
    """The parts of one step; the parts of several steps, if all sequences of a step must have equally many tokens."""
    if not uniform:
        return [parts]
    return [list(group) for _, group in groupby(parts, key=lambda part: len(part[1]))]


def step_of(parts: Parts, ends: list[int]) -> Step:
    """The step of these tokens, all of them outputs but those of a text for an encoder; advances `ends`."""
    ids, positions, sequences = [], [], []
    for sequence, given in parts:
        ids += given
        positions += range(ends[sequence], ends[sequence] + len(given))
        sequences += [sequence] * len(given)
        ends[sequence] += len(given)
    outputs = [n for n, token in enumerate(ids) if token >= 0]
    arrays = (np.array(numbers, np.int32) for numbers in (ids, positions, sequences, outputs))
    return Step(*arrays)


def embeddings(model: Model, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """The pooled vector of each text, all in one step."""
    kept = StepCache(model, None)
    whole = step_of(list(enumerate(texts)), [0] * len(texts))
    starts = np.cumsum([0, *map(len, texts)])[:-1].astype(np.int32)
    try:
        return kept.run(Step(whole.tokens, whole.positions, whole.sequences, starts))
    finally:
        kept.close()


TEXTS = [tokens(12, 20), tokens(3, 21), tokens(31, 22)]


def nmse(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The mean square error over the mean square of the expected result."""
    difference = found.astype(np.float64) - expected
    return float((difference**2).mean() / (expected.astype(np.float64) ** 2).mean())
