"""What inductor compiles: reads between writes, roundings, recurrences as one step."""

from __future__ import annotations

import numpy as np
import pytest

import backbay
from backbay import BackendParams, DType, GPULayersList, ops

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from backbay_torch import backbay_backend  # noqa: E402
from backbay_torch.backend import SCANS  # noqa: E402


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
