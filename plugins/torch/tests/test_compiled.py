"""What is compiled: views without `as_strided`, roundings, recurrences as one step."""

from __future__ import annotations

import random

import numpy as np
import pytest

import backbay
from backbay import BackendParams, DType, GPULayersList, ops

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from backbay_torch import backbay_backend, views  # noqa: E402
from backbay_torch.backend import SCANS  # noqa: E402


def some_view(chance: random.Random):
    """A storage, and a view that slices, steps, permutations, diagonals and repeats make of it."""
    view = torch.arange(240.0)[chance.choice((0, 4)) :][: 5 * 4 * 3].reshape(5, 4, 3)
    storage = torch.arange(240.0)[: chance.choice((64, 100, 240))]
    for _ in range(chance.randrange(5)):
        axis = chance.randrange(view.dim())
        match chance.choice(("permute", "slice", "repeat", "diagonal")):
            case "permute":
                view = view.permute(chance.sample(range(view.dim()), view.dim()))
            case "slice" if view.shape[axis]:
                low = chance.randrange(view.shape[axis])
                view = view[(slice(None),) * axis + (slice(low, None, chance.randint(1, 3)),)]
            case "repeat":
                view = view.unsqueeze(axis).expand(*view.shape[:axis], 2, *view.shape[axis:])
            case "diagonal" if view.dim() > 1:
                view = view.diagonal()
    return storage, view.storage_offset(), tuple(view.shape), view.stride()


def test_a_relative_view_is_that_of_as_strided(monkeypatch):
    copies, gathered = [], views.gathered
    monkeypatch.setattr(views, "gathered", lambda *view: copies.append(view) or gathered(*view))
    chance = random.Random(0)
    for _ in range(1000):
        storage, offset, shape, strides = some_view(chance)
        expected = storage.as_strided(shape, strides, offset)
        came = views.relative_view(storage, offset, shape, strides)
        assert came.shape == expected.shape
        assert torch.equal(came, expected), (offset, shape, strides)
    assert 0 < len(copies) < 300  # diagonals, and rows that end with the storage


def test_a_read_between_two_writes_and_a_rounding_are_compiled_right():
    params = BackendParams(gpu_layers=GPULayersList(), options={"mode": "compiled"})  # on the CPU
    with backbay.open(None, backbay_backend(), params) as backend, backend.new_context() as ctx:
        state = ctx.empty(DType.F16, 4, 5).from_floats(np.arange(20.0).reshape(5, 4))
        source, third = ctx.from_floats([[-1.0, -2.0, -3.0, -4.0]]), ctx.from_floats([1 / 3])
        part, reads = state.slice(ctx, 1, 3, 4), []
        for written in (source, source.scale(ctx, 2.0)):
            ctx.forward(written.copy(ctx, part))
            reads.append(part.contiguous(ctx))
            ctx.forward(reads[-1])
        rounded = third.cast(ctx, DType.F16).cast(ctx, DType.F32)
        ctx.compute(*reads, rounded)
        assert [read.floats().tolist() for read in reads] == [[-1, -2, -3, -4], [-2, -4, -6, -8]]
        assert rounded.floats() == np.float16(1 / 3)


def test_a_recurrence_is_traced_once_for_all_tokens():
    def traced(tokens: int) -> int:
        def program(s, q, k, v, decay, share):
            return SCANS[ops.delta_rule](s, q, k, v, decay, share, None)

        per_token = [torch.zeros(1, tokens, 2, n) for n in (4, 4, 3, 4, 1)]
        with torch.inference_mode():
            return len(make_fx(program, tracing_mode="fake")(torch.zeros(1, 2, 3, 4), *per_token).graph.nodes)

    assert traced(3) == traced(30)
