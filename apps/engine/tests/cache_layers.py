"""Layers that test caches by their results: cross attention, and a recurrent layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import Backend, DType
from backbay_engine.cache import EncoderCache, RecurrentCache
from backbay_engine.steps.step import Step

CHANNELS, TAPS, STATES = 6, 4, 3


def step_of(*tokens: tuple[int, int]) -> Step:
    """A step of (sequence, position)."""
    sequences, positions = np.array(tokens, np.int32).reshape(-1, 2).T.copy()
    return Step(np.zeros_like(positions), positions, sequences, np.arange(len(tokens), dtype=np.int32))


def run_of(sequence: int, first: int, count: int) -> list[tuple[int, int]]:
    return [(sequence, first + n) for n in range(count)]


class Cross:
    """A layer of cross attention over encoder outputs, in traced contexts."""

    def __init__(self, backend: Backend, cache: EncoderCache) -> None:
        self.backend, self.cache = backend, cache
        self.kept: dict[Any, Any] = {}
        self.rng = np.random.default_rng(0)

    def step(self, step: Step, outputs: dict[int, np.ndarray]) -> np.ndarray:
        """The attention of a step, (tokens, heads, 8), that puts outputs (count, 2, 8) as keys and values; or zeros."""
        plan = self.cache.plan(step)
        key = step.size, plan.key
        query = self.rng.standard_normal((step.size, 4, 8)).astype(np.float32)
        made = np.concatenate([*outputs.values(), np.zeros((0, 2, 8))]).astype(np.float32)
        if key not in self.kept:
            ctx = self.backend.new_context()
            bound, at = self.cache.bind(ctx, plan), ctx.layer(0)
            q, x = (
                ctx.input().empty(DType.F32, 8, 4, step.size),
                ctx.input().empty(DType.F32, 8, 2, len(made)),
            )
            if bound.puts:
                bound.put(at, 0, x, x)
            result, masked = None, False
            if not bound.is_empty:
                seen = bound.get(at, 0)
                masked = seen.mask is not None
                result = seen.attend(at, q, 1.0)
            self.kept[key] = ctx, bound, q, x, result, not masked
        ctx, bound, q, x, result, _ = self.kept[key]
        bound.fill(plan)
        q.from_floats(query)
        x.from_floats(made)
        ctx.compute(*[result] if result is not None else [])
        self.present = bound.present.numpy().reshape(-1)
        self.query = query
        return np.zeros_like(query) if result is None else result.numpy()

    def expected(self, i: int, output: np.ndarray) -> np.ndarray:
        rows = []
        for head in range(4):
            scores = output[:, head // 2] @ self.query[i, head]
            weights = np.exp(scores - scores.max())
            rows.append(weights / weights.sum() @ output[:, head // 2])
        return np.array(rows)


def output_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 2, 8)).astype(np.float32)


class Mamba:
    """A layer with a short convolution and a running state, and the same in NumPy."""

    def __init__(self, backend: Backend, cache: RecurrentCache) -> None:
        self.backend, self.cache = backend, cache
        rng = np.random.default_rng(0)
        self.weight = rng.standard_normal((CHANNELS, TAPS)).astype(np.float32)
        self.decay = -rng.random((1, STATES)).astype(np.float32) - 0.1  # (heads, states)
        self.rng, self.kept = rng, {}
        self.fed: dict[int, list[np.ndarray]] = {}

    def step(self, *parts: tuple[int, int]) -> None:
        """Run a step; compare it with the results of all tokens so far."""
        count = parts[0][1]
        tokens = [t for s, n in parts for t in run_of(s, len(self.fed.get(s, [])), n)]
        step, q = step_of(*tokens), len(parts)
        plan = self.cache.plan(step)
        x = self.rng.standard_normal((step.size, CHANNELS)).astype(np.float32)
        if (step.size, plan.key) not in self.kept:
            self.kept[step.size, plan.key] = self._trace(plan, count, q)
        ctx, bound, leaf, conv, run = self.kept[step.size, plan.key]
        bound.fill(plan)
        leaf.from_floats(x)
        ctx.compute(conv, run)
        for i, (sequence, _) in enumerate(tokens):
            self.fed.setdefault(sequence, []).append(x[i])
        got_conv, got_run = conv.numpy().reshape(step.size, CHANNELS), run.numpy()[: step.size * CHANNELS]
        for i, (sequence, position) in enumerate(tokens):
            np.testing.assert_allclose(got_conv[i], self.convolved(sequence, position), atol=1e-5)
            expected = self.scanned(sequence, position)
            np.testing.assert_allclose(got_run.reshape(step.size, CHANNELS)[i], expected, atol=1e-5)

    def _trace(self, plan: Any, tokens: int, q: int) -> Any:
        ctx = self.backend.new_context()
        bound, at = self.cache.bind(ctx, plan), ctx.layer(0)
        assert (bound.sequences, bound.tokens) == (q, tokens)
        x = ctx.input().empty(DType.F32, CHANNELS, tokens * q)
        conv = bound.convolved(at, 0, x, TAPS).ssm_conv(at, ctx.from_floats(self.weight))
        whole, rows = bound.all_states(at, 0, "ssm", STATES, CHANNELS, 1)
        ones = [ctx.from_floats(np.ones((q, tokens, 1, STATES))) for _ in range(2)]
        run = whole.ssm_scan(
            at,
            x.reshape(at, CHANNELS, 1, tokens, q),
            ctx.from_floats(np.zeros((q, tokens, 1))),
            ctx.from_floats(self.decay),
            *ones,
            rows,
        )
        size = CHANNELS * tokens * q
        after = run.view(at, 4 * size, (STATES, CHANNELS, 1, q))
        bound.keep(at, 0, "ssm", after.contiguous(at))
        return ctx, bound, x, conv, run

    def convolved(self, sequence: int, position: int) -> np.ndarray:
        past = np.concatenate([np.zeros((TAPS - 1, CHANNELS)), self.fed[sequence][: position + 1]])[-TAPS:]
        return (past * self.weight.T).sum(0)

    def scanned(self, sequence: int, position: int) -> np.ndarray:
        h, d = np.zeros((CHANNELS, STATES)), np.log(2.0)
        for x in self.fed[sequence][: position + 1]:
            h = h * np.exp(d * self.decay[0]) + x[:, None] * d
        return h.sum(-1)
