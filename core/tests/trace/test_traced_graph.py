"""Tracing: what is recorded, what is refused, and what an error says."""

import numpy as np
import pytest

import backbay
from backbay import BackbayError, ClosedError, DType, DTypeError, GraphSizeError, ShapeError, ops


def test_an_op_is_recorded_and_nothing_runs(backend, ctx):
    x = ctx.from_floats(np.ones((3, 64)))
    y = x.silu(ctx).add(ctx, x)
    assert (y.shape, y.dtype, y.op.name) == ((64, 3), DType.F32, "add")
    assert (ctx.counters.traced_nodes, ctx.counters.compilations, ctx.counters.runs) == (2, 0, 0)


def test_an_error_names_op_specs_rule_and_numbers(ctx):
    w, x = ctx.empty(DType.F32, 64, 8), ctx.empty(DType.F32, 32, 3)
    with pytest.raises(ShapeError) as caught:
        w.mulmat(ctx, x)
    assert str(caught.value) == "mulmat: f32[64,8] x f32[32,3]: dimension 0 must match, 64 != 32"


def test_attributes_are_checked_and_converted(ctx):
    x = ctx.empty(DType.F32, 4, 2)
    assert x.scale(ctx, 2).args == (x, 2.0)
    assert x.scale(ctx, np.float32(0.5)).args == (x, 0.5)
    assert x.reshape(ctx, np.int64(8)).args == (x, (8,))
    for wrong in ("2", None, [1.0]):
        with pytest.raises(DTypeError, match="s must be a number"):
            x.scale(ctx, wrong)
    with pytest.raises(DTypeError, match="dtype must be a DType"):
        x.cast(ctx, "f16")
    with pytest.raises(DTypeError, match=r"shape must be an integer, got 2\.5"):
        x.reshape(ctx, 2.5, 4)
    with pytest.raises(ShapeError, match="must fit 64 bits"):
        x.slice(ctx, 0, 0, 1 << 63)


def test_an_operand_must_be_a_tensor(ctx):
    x = ctx.empty(DType.F32, 4)
    for wrong in (np.ones(4, np.float32), 1.0, None, "x"):
        with pytest.raises(DTypeError, match="t2 must be a Tensor"):
            x.add(ctx, wrong)
        for run in (ctx.forward, ctx.compute):
            with pytest.raises(DTypeError, match="take tensors, got"):
                run(wrong)
    with pytest.raises(DTypeError, match=r"^add: t2 must be given: x\.add\(ctx, t2\)$"):
        x.add(ctx)
    with pytest.raises(TypeError):
        x.add(ctx, x, x)
    with pytest.raises(TypeError):
        x.add(ctx, other=x)


@pytest.mark.parametrize("name", backbay.OPS)
def test_a_call_without_the_context_shows_how_to_call(ctx, name):
    call = getattr(ctx.from_floats([[1.0, 2.0]]), name)
    for arguments in ((), (ctx.from_floats([1.0]),), (2.0,)):
        with pytest.raises(
            DTypeError, match=rf"^{name}: the first argument is the context: \w+\.{name}\(ctx"
        ):
            call(*arguments)


def test_a_shape_may_be_integers_or_one_sequence(ctx):
    x = ctx.empty(DType.F32, 4, 6)
    assert (
        x.reshape(ctx, 8, 3).shape == x.reshape(ctx, (8, 3)).shape == x.reshape(ctx, [8, 3]).shape == (8, 3)
    )
    assert ctx.empty(DType.F32, (4, 6)).shape == (4, 6)


def test_keyword_and_positional_attributes_are_one(ctx):
    x, w = ctx.empty(DType.F32, 4, 6), ctx.empty(DType.F32, 4)
    assert x.rms_norm(ctx, w, 1e-3).args == x.rms_norm(ctx, weight=w, eps=1e-3).args == (x, w, 1e-3)
    assert x.rms_norm(ctx, eps=1e-3).args == (x, None, 1e-3)


def test_only_leaves_and_weights_cross_contexts(backend, ctx):
    other = backend.new_context()
    leaf = other.from_floats([1, 2])
    computed = leaf.neg(other)
    assert leaf.neg(ctx).shape == (2,)
    for foreign in (computed, leaf.reshape(other, 1, 2)):
        with pytest.raises(DTypeError, match="belongs to another context; only leaves and weights cross"):
            foreign.neg(ctx)
        with pytest.raises(DTypeError, match="belongs to another context"):
            ctx.forward(foreign)


def test_a_tensor_of_another_backend_is_refused(ctx):
    with backbay.open(None, backend="cpu_ref") as second, second.new_context() as foreign:
        x = foreign.from_floats([1, 2])
        with pytest.raises(DTypeError, match="belongs to another backend"):
            x.neg(ctx)


def test_a_graph_has_a_limit(backend):
    ctx = backend.new_context(max_nodes=3)
    assert ctx.max_graph_nodes == 3
    x = ctx.from_floats([1, 2])
    y = x.neg(ctx).neg(ctx).neg(ctx)
    with pytest.raises(GraphSizeError, match="more than the 3 nodes"):
        y.neg(ctx)


def test_composites_do_not_count_so_that_a_graph_fits_on_every_backend_or_on_none():
    reference = backbay.backends()["cpu_ref"].load()
    kernels = dict(reference.kernels)
    kernels.pop(ops.scaled_dot_product_attention)
    with type("Composed", (reference,), {"kernels": kernels})() as backend:
        ctx = backend.new_context(max_nodes=1)
        q = ctx.from_floats(np.ones((2, 1, 4)))
        y = q.scaled_dot_product_attention(ctx, q, q, scale=1.0)
        ctx.compute(y)
        assert ctx.counters.traced_nodes == 1
        with pytest.raises(GraphSizeError):
            y.neg(ctx)


def test_a_closed_context_traces_nothing(backend):
    ctx = backend.new_context()
    x = ctx.from_floats([1, 2])
    ctx.close()
    for use in (
        lambda: x.neg(ctx),
        lambda: ctx.empty(DType.F32, 1),
        lambda: ctx.forward(x),
        lambda: x.floats(),
    ):
        with pytest.raises(ClosedError):
            use()


def test_a_leaf_of_a_closed_context_is_refused_elsewhere(backend, ctx):
    other = backend.new_context()
    x = other.from_floats([1, 2])
    y = x.neg(ctx)
    ctx.compute(y)
    other.close()
    with pytest.raises(ClosedError):
        x.neg(ctx)
    with pytest.raises(ClosedError):
        ctx.compute(y)


@pytest.mark.parametrize("dtype", [DType.F64, DType.I8, DType.I16])
def test_types_that_only_files_hold_make_no_tensors(ctx, dtype):
    with pytest.raises(DTypeError):
        ctx.empty(dtype, 4)


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        (DType.F32, (-1,), "negative"),
        (DType.F32, (1, 1, 1, 1, 1), "at most 4 dimensions"),
        (DType.Q4_0, (31,), "multiple of 32, got 31"),
        (DType.F32, (1 << 40, 1 << 40), "too large"),
        (DType.F32, ("a",), "integers"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(ctx, dtype, shape, message):
    with pytest.raises(ShapeError, match=message):
        ctx.empty(dtype, *shape)


def test_a_chunk_of_more_pieces_than_any_graph_has_nodes_is_refused_before_they_are_made(ctx):
    x = ctx.empty(DType.F32, 1, 1).pad(ctx, 1 << 40)
    with pytest.raises(ShapeError, match="at most 65536 pieces"):
        x.chunk(ctx, 0, 1)
    assert len(x.chunk(ctx, 0, 1 << 39)) == 3


def test_a_slice_may_step_beyond_everything(ctx):
    y = ctx.from_ints([[1, 2, 3]]).slice(ctx, 0, 1, 3, 1 << 62)
    ctx.compute(y)
    assert y.numpy().tolist() == [[2]]


@pytest.mark.parametrize(
    "trace",
    [
        lambda ctx, wide: wide.mulmat(ctx, wide),
        lambda ctx, wide: ctx.zeros(DType.F32, 1, 1, 1, 1).conv2d(
            ctx, ctx.zeros(DType.F32, 0, 0, 1, 1), 1, 1, 1 << 30, 1 << 30
        ),
        lambda ctx, wide: wide.interpolate(ctx, (1 << 31, 1 << 31, 0)),
    ],
)
def test_a_result_beyond_64_bits_is_refused(ctx, trace):
    wide = ctx.zeros(DType.F32, 0, 1 << 40)
    with pytest.raises(ShapeError, match=r"f32\[.* is too large"):
        trace(ctx, wide)


def test_everything_raised_on_purpose_is_a_backbay_error():
    kinds = [
        kind for kind in vars(backbay).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) > 12
    assert all(issubclass(kind, BackbayError) for kind in kinds)
    assert issubclass(ShapeError, ValueError) and issubclass(DTypeError, TypeError)
    assert issubclass(backbay.NoMemoryError, MemoryError) and issubclass(backbay.ModelFileError, ValueError)


def test_numpy_takes_the_elements_of_a_tensor(ctx):
    x = ctx.from_floats([[1, 2], [3, 4]])
    np.testing.assert_array_equal(np.asarray(x), [[1, 2], [3, 4]])
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    with pytest.raises(backbay.NotComputedError):
        np.asarray(x.add(ctx, x))
