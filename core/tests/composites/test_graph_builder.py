"""Graphs: the order of nodes, composites, structure and sizes, and computing again."""

import numpy as np
import pytest

import backbay
from backbay import BackendParams, DType, UnsupportedOpError, ops
from backbay.composites.graph_builder import build_graph


def graph_of(ctx, *roots):
    return build_graph(ctx.recording, roots, ctx.backend.supports)


def names(graph):
    return [node.op.name for node in graph.nodes if node.op]


def test_ancestors_come_first_depth_first_by_operand(ctx):
    x = ctx.from_floats([1, 2])
    left, right = x.neg(ctx).exp(ctx), x.sqr(ctx)
    graph = graph_of(ctx, left.add(ctx, right))
    assert names(graph) == ["neg", "exp", "sqr", "add"]
    assert [node.index for node in graph.nodes] == list(range(5))


def test_roots_run_in_the_order_of_forward(ctx):
    x = ctx.from_floats([1, 2])
    a, b, c = x.neg(ctx), x.exp(ctx), x.sqr(ctx)
    ctx.forward(c).forward(a, b)
    assert names(graph_of(ctx, *ctx.recording._roots)) == ["sqr", "neg", "exp"]


def test_what_nobody_asked_for_does_not_run(ctx):
    x = ctx.from_floats([1, 2])
    x.exp(ctx)
    assert names(graph_of(ctx, x.neg(ctx))) == ["neg"]


def test_a_zero_among_attributes_keeps_its_sign(ctx):
    x = ctx.from_floats([1, 2])
    graph = graph_of(ctx, x.scale(ctx, 0.0), x.scale(ctx, -0.0), x.scale(ctx, 0.1))
    assert [str(node.args[1]) for node in graph.nodes if node.op] == [
        "0.0",
        "-0.0",
        str(float(np.float32(0.1))),
    ]


def test_a_long_chain_is_no_deep_recursion(backend):
    ctx = backend.new_context(max_nodes=20_000)
    x = y = ctx.from_floats([1.0])
    for _ in range(10_000):
        y = y.neg(ctx)
    ctx.compute(y)
    assert y.floats().tolist() == x.floats().tolist()


def without(*missing):
    reference = backbay.backends()["cpu_ref"].load()
    table = {op: kernel for op, kernel in reference.kernels.items() if op not in missing}
    return type("Without", (reference,), {"kernels": table})()


def test_a_composite_serves_where_a_kernel_is_missing():
    with without(ops.silu, ops.scaled_dot_product_attention) as backend:
        ctx = backend.new_context()
        x = ctx.from_floats([1.0, -2.0])
        y = x.silu(ctx)
        assert names(graph_of(ctx, y)) == ["sigmoid", "mul"]
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [1 / (1 + np.exp(-1)), -2 / (1 + np.exp(2))], rtol=1e-6)


def test_opening_composites_is_not_counted_as_tracing():
    with without(ops.silu) as backend:
        ctx = backend.new_context()
        y = ctx.from_floats([1.0, -2.0]).silu(ctx)
        ctx.compute(y)
        assert ctx.counters.traced_nodes == 1


def test_views_of_a_composite_see_its_values():
    with without(ops.top_k) as backend:
        ctx = backend.new_context()
        best = ctx.from_floats([[3, 1, 2], [4, 6, 5]]).top_k(ctx, 2)
        second = best.slice(ctx, 0, 1, 2)
        ctx.compute(best, second)
        assert best.numpy().tolist() == [[0, 2], [1, 2]] and second.numpy().tolist() == [[2], [2]]


def test_what_is_missing_is_named_before_anything_runs():
    with without(ops.softmax) as backend:
        ctx = backend.new_context()
        x = ctx.from_floats(np.ones((3, 64)))
        y = x.softmax(ctx)
        with pytest.raises(UnsupportedOpError, match=r"cannot run softmax: f32\[64,3\]: it has no kernel"):
            ctx.compute(y)
        assert ctx.counters.runs == 0


def test_computing_again_traces_compiles_and_allocates_nothing(ctx):
    x = ctx.from_floats([1, 2])
    y = x.exp(ctx)
    ctx.compute(y)
    before = (ctx.counters.traced_nodes, ctx.counters.compilations, ctx.counters.bytes_allocated)
    for step in range(3):
        x.from_floats([step, -step])
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), np.exp([step, -step]), rtol=1e-6)
    assert (ctx.counters.traced_nodes, ctx.counters.compilations, ctx.counters.bytes_allocated) == before
    assert ctx.counters.runs == 4


def test_reserve_compiles_for_the_compute_that_follows(backend, ctx):
    x = ctx.from_floats(np.ones((50, 64)))
    y = x.exp(ctx).neg(ctx)
    ctx.forward(y).reserve()
    assert (ctx.counters.compilations, ctx.counters.runs) == (1, 0)
    assert backend.memory().cpu.graph.size >= 2 * y.nbytes
    reserved = ctx.counters.bytes_allocated
    ctx.compute(y)
    assert (ctx.counters.compilations, ctx.counters.runs) == (1, 1)
    assert ctx.counters.bytes_allocated == reserved


def test_tracing_on_after_compute_compiles_again(ctx):
    x = ctx.from_floats([1, 2])
    y = x.neg(ctx)
    ctx.compute(y)
    z = y.scale(ctx, 2)
    ctx.compute(z)
    assert ctx.counters.compilations == 2 and z.floats().tolist() == [-2, -4]


def test_an_output_may_be_an_input_a_view_or_used_further(ctx):
    x = ctx.from_floats([1, 2, 3, 4])
    half = x.neg(ctx).slice(ctx, 0, 2, 4)
    ctx.compute(x, half, half.exp(ctx))
    assert x.floats().tolist() == [1, 2, 3, 4] and half.floats().tolist() == [-3, -4]


def test_results_survive_the_sharing_of_memory(ctx):
    x = ctx.from_floats(np.arange(64))
    kept = [x.scale(ctx, n) for n in range(8)]
    last = kept[0]
    for other in kept[1:]:
        last = last.add(ctx, other.neg(ctx))
    ctx.compute(*kept, last)
    for n, result in enumerate(kept):
        assert (result.floats() == np.arange(64) * n).all()
    assert (last.floats() == -28 * np.arange(64)).all()


def test_compute_without_outputs_runs_what_forward_fixed(ctx):
    state = ctx.zeros(DType.F32, 2)
    ctx.forward(ctx.from_floats([3, 4]).copy(ctx, state)).compute()
    assert state.floats().tolist() == [3, 4]
    ctx.compute()
    assert ctx.counters.compilations == 1 and ctx.counters.runs == 2


def test_the_batch_size_reaches_the_graph_and_a_new_one_compiles_again(ctx):
    x = ctx.from_floats([1, 2])
    y = x.neg(ctx)
    ctx.set_batch_size(32)
    ctx.compute(y)
    assert ctx.recording._graph.batch_size == 32
    ctx.set_batch_size(32)
    ctx.compute(y)
    assert ctx.counters.compilations == 1
    ctx.set_batch_size(1)
    ctx.compute(y)
    assert ctx.counters.compilations == 2 and ctx.recording._graph.batch_size == 1


def test_placements_reach_the_nodes(ctx):
    w = ctx.layer(3).from_floats([1, 2])
    y = ctx.input().from_floats([1, 2]).add(ctx.layer(3), w)
    graph = graph_of(ctx, y)
    assert [(n.placement.host, n.placement.layer) for n in graph.nodes] == [
        (True, None),
        (False, 3),
        (False, 3),
    ]


def test_float_attributes_reach_a_backend_as_float32(ctx):
    x = ctx.from_floats([1, 2])
    graph = graph_of(
        ctx, x.scale(ctx, 0.1), x.clamp(ctx, -1e300, 1e300), ctx.from_ints([1]).fill(ctx, 2.0**31 - 1)
    )
    args = {node.op.name: node.args[1:] for node in graph.nodes if node.op}
    assert args == {
        "scale": (float(np.float32(0.1)),),
        "clamp": (-np.inf, np.inf),
        "fill": (2.0**31 - 1,),
    }


# -- structure and sizes ---------------------------------------------------------------------------------


def step(backend, cache, tokens, history, *, width=8, scale=0.5):
    """A step of a small model: its size attributes are all there are, and its dimensions vary."""
    ctx = backend.new_context()
    x = ctx.empty(DType.F32, width, tokens)
    where = ctx.empty(DType.I32, tokens)
    written = cache.set_rows(ctx, x, where)
    seen = written.view(ctx, 0, (width, history), (cache.stride(1),))
    y = seen.mulmat(ctx, x.scale(ctx, scale)).reshape(ctx, history * tokens)
    return ctx, y.slice(ctx, 0, 0, history)


def test_two_step_shapes_of_one_model_have_one_structure_and_one_layout_of_sizes(backend):
    cache = backend.new_context().zeros(DType.F32, 8, 512, row_axis=1)
    graphs = [
        graph_of(*step(backend, cache, tokens, history)) for tokens, history in ((1, 256), (7, 256), (8, 512))
    ]
    assert len({graph.structure_key() for graph in graphs}) == 1
    assert [graph.sizes() for graph in graphs] == [
        ((0,), (8, 256), (32,), (256,), (0,), (256,)),
        ((0,), (8, 256), (32,), (1792,), (0,), (256,)),
        ((0,), (8, 512), (32,), (4096,), (0,), (512,)),
    ]


def test_what_is_no_size_is_structure(backend):
    cache = backend.new_context().zeros(DType.F32, 8, 512, row_axis=1)
    key = graph_of(*step(backend, cache, 1, 256)).structure_key()
    assert graph_of(*step(backend, cache, 1, 256, scale=0.25)).structure_key() != key
    plain = backend.new_context().zeros(DType.F32, 8, 512)
    assert graph_of(*step(backend, plain, 1, 256)).structure_key() != key
    half = backend.new_context().zeros(DType.F16, 8, 512, row_axis=1)
    assert graph_of(*step(backend, half, 1, 256)).structure_key() != key


def test_outputs_operands_ranks_and_numbers_of_sizes_are_structure(ctx):
    a, b = ctx.empty(DType.F32, 4, 2), ctx.empty(DType.F32, 4, 2)
    y = a.sub(ctx, b)
    keys = [
        graph_of(ctx, a, b, y).structure_key(),
        graph_of(ctx, a, b, b.sub(ctx, a)).structure_key(),
        graph_of(ctx, a, y, b).structure_key(),
        graph_of(ctx, a, b, a.reshape(ctx, 8)).structure_key(),
        graph_of(ctx, a, b, a.reshape(ctx, 2, 4)).structure_key(),
    ]
    assert len(set(keys)) == 5


def test_a_state_is_a_leaf_that_is_written_or_comes_from_elsewhere(backend, ctx):
    other = backend.new_context()
    elsewhere, written, plain = other.zeros(DType.F32, 2), ctx.zeros(DType.F32, 2), ctx.zeros(DType.F32, 2)
    graph = graph_of(ctx, plain.copy(ctx, written), elsewhere.neg(ctx))
    assert [node.kind for node in graph.nodes] == ["input", "state", "op", "state", "op"]
    assert len(graph.of_kind("state")) == 2


# -- views and writes ------------------------------------------------------------------------------------


def test_views_of_views_know_base_offset_and_strides(ctx):
    x = ctx.from_floats(np.arange(24), 4, 3, 2)
    view = x.slice(ctx, 1, 1, 3).permute(ctx, 1, 0, 2).slice(ctx, 0, 1, 2)
    assert (view.shape, view.offset, [view.stride(n) for n in range(3)]) == ((1, 4, 2), 32, [16, 4, 48])
    assert view.storage is x
    ctx.compute(view)
    assert view.numpy().tolist() == np.arange(24).reshape(2, 3, 4)[:, 2:3, :].transpose(0, 2, 1).tolist()


def test_writes_and_reads_keep_the_order_of_forward(ctx):
    state = ctx.from_floats([0, 0, 0, 0])
    before = state.scale(ctx, 1)
    first = ctx.from_floats([1, 1]).copy(ctx, state.slice(ctx, 0, 0, 2))
    between = state.scale(ctx, 1)
    second = ctx.from_floats([2, 2]).copy(ctx, state.slice(ctx, 0, 1, 3))
    after = state.scale(ctx, 1)
    ctx.forward(before, first, between, second, after).compute(before, between, after)
    assert before.floats().tolist() == [0, 0, 0, 0]
    assert between.floats().tolist() == [1, 1, 0, 0]
    assert after.floats().tolist() == [1, 2, 2, 0]


def test_a_write_is_seen_by_other_contexts(backend, ctx):
    store = backend.new_context()
    state = store.zeros(DType.F32, 2, 3)
    ctx.forward(state.set_rows(ctx, ctx.from_floats([[5, 6]]), ctx.from_ints([1]))).compute()
    reader = backend.new_context()
    seen = state.slice(reader, 1, 1, 2).scale(reader, 2)
    reader.compute(seen)
    assert seen.floats().tolist() == [10, 12]
    assert state.floats().tolist() == [0, 0, 5, 6, 0, 0]


def test_only_leaves_can_be_written(ctx, backend):
    x = ctx.from_floats([1, 2])
    with pytest.raises(backbay.DTypeError, match="must be a leaf, or a view of one, not what neg computes"):
        x.copy(ctx, x.neg(ctx))


def test_poison_and_guards_do_not_reach_results():
    debug = backbay.Debug(poison=True, guard_bytes=64)
    with backbay.open(None, backend="cpu_ref", params=BackendParams(debug=debug)) as backend:
        ctx = backend.new_context()
        x = ctx.from_floats(np.ones(10))
        y = x.exp(ctx).neg(ctx)
        ctx.compute(y)
        assert np.isfinite(y.floats()).all()
        assert np.isnan(ctx.empty(DType.F32, 3).floats()).all()


def test_a_write_outside_of_a_buffer_is_noticed():
    reference = backbay.backends()["cpu_ref"].load()

    class Overruns(reference):
        def run_node(self, node, arrays):
            super().run_node(node, arrays)
            memory = arrays[node.index].base
            while isinstance(memory.base, np.ndarray):
                memory = memory.base
            memory[-1] = 0

    params = BackendParams(debug=backbay.Debug(guard_bytes=16))
    with backbay.open(None, backend=Overruns, params=params) as backend:
        ctx = backend.new_context()
        y = ctx.from_floats(np.ones(10)).neg(ctx)
        with pytest.raises(backbay.BackbayError, match="outside of a buffer"):
            ctx.compute(y)
