"""A backend refuses an op when it compiles: an error with the op and the reason, or core's composite, and never silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbay
from backbay import Graph, RefusalError, ops


class Refusing(backbay.backends()["cpu_ref"].load()):  # type: ignore[misc]
    name = "refusing"

    def compile(self, graph: Graph) -> Any:
        for node in graph.nodes:
            if node.op is ops.silu and node.rank == 2:
                raise RefusalError("no matrices", node)
        return super().compile(graph)


class Composing(Refusing):
    composes_refusals = True


def test_a_refusal_names_the_op_and_the_reason_and_the_context_stays_usable() -> None:
    with backbay.open(None, backend=Refusing) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([[1.0, 2.0]])
        with pytest.raises(RefusalError, match=r"^silu: f32\[2,1\]: no matrices$"):
            ctx.compute(x.silu(ctx))
        y = x.neg(ctx)
        ctx.compute(y)
        assert y.floats().tolist() == [-1, -2]
        assert not backend.refusals


def test_the_composite_runs_in_the_place_of_a_refused_op_and_the_backend_says_where() -> None:
    with backbay.open(None, backend=Composing) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([[1.0, 2.0]])
        y, z = x.silu(ctx).neg(ctx), x.reshape(ctx, 2).silu(ctx)
        ctx.compute(y, z)
        expected = np.array([1, 2]) / (1 + np.exp([-1.0, -2.0]))
        assert np.allclose(y.floats(), -expected)
        assert np.allclose(z.floats(), expected)
        assert backend.refusals == {"silu(f32[2,1], None)": "no matrices"}


def test_a_refused_op_is_compiled_once_for_all_contexts() -> None:
    with backbay.open(None, backend=Composing) as backend:
        for _ in range(2):
            with backend.new_context() as ctx:
                ctx.compute(ctx.from_floats([[1.0, 2.0]]).silu(ctx))
                assert ctx.counters.compilations == 1
        assert len(backend.refusals) == 1
