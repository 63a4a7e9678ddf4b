"""The bytes and multiplications that an op is said to take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import backbay
from backbay import Backend, Context, DType, Node, Tensor, ops
from backbay_engine.profiles import op_costs


@pytest.fixture
def ctx() -> Iterator[Context]:
    with backbay.open(None, "cpu_ref") as backend, backend.new_context() as made:
        yield made


def node_of(ctx: Context, *roots: Tensor) -> Node:
    """The last node of a graph, as a profile of it has it."""
    backend: Backend = ctx.backend
    with backend.profiling() as runs:
        ctx.compute(*roots)
    return runs[0].graph.nodes[-1]


def test_a_product_reads_its_weight_and_columns_and_writes_its_result(ctx: Context) -> None:
    w, x = ctx.zeros(DType.Q8_0, 64, 10), ctx.zeros(DType.F32, 64, 3)
    node = node_of(ctx, w.mulmat(ctx, x))
    assert op_costs.bytes_moved(node) == 2 * 34 * 10 + 4 * 64 * 3 + 4 * 10 * 3
    assert op_costs.multiplications(node) == 64 * 10 * 3


def test_an_operand_that_is_read_twice_counts_once(ctx: Context) -> None:
    x = ctx.zeros(DType.F32, 5)
    node = node_of(ctx, x.add(ctx, x))
    assert op_costs.bytes_moved(node) == 4 * 5 + 4 * 5
    assert op_costs.multiplications(node) == 0


def test_of_a_table_only_the_chosen_rows_count(ctx: Context) -> None:
    table, ids = ctx.zeros(DType.F16, 8, 1000), ctx.from_ints([1, 2, 3])
    assert op_costs.bytes_moved(node_of(ctx, table.rows(ctx, ids))) == 2 * 8 * 3 + 4 * 3 + 4 * 8 * 3


def test_of_a_table_only_the_written_rows_count(ctx: Context) -> None:
    table, ids = ctx.zeros(DType.F16, 8, 1000), ctx.from_ints(np.array([1, 2]))
    node = node_of(ctx, table.set_rows(ctx, ctx.zeros(DType.F32, 8, 2), ids))
    assert node.op is ops.set_rows
    assert op_costs.bytes_moved(node) == 4 * 8 * 2 + ids.nbytes + 2 * 8 * 2


def test_of_many_experts_only_as_many_count_as_were_chosen(ctx: Context) -> None:
    w, x = ctx.zeros(DType.F32, 4, 6, 100), ctx.zeros(DType.F32, 4, 1, 2)
    node = node_of(ctx, w.mulmat_id(ctx, x, ctx.from_ints([[0, 7], [7, 9]], 2, 2)))
    assert op_costs.bytes_moved(node) == 4 * 4 * 6 * 4 + 4 * 4 * 2 + 4 * 4 + 4 * 6 * 2 * 2
    assert op_costs.multiplications(node) == 4 * 6 * 2 * 2


def test_attention_multiplies_queries_with_keys_and_weights_with_values(ctx: Context) -> None:
    q = ctx.zeros(DType.F32, 8, 4, 2)
    k, v = ctx.zeros(DType.F32, 8, 2, 50), ctx.zeros(DType.F32, 6, 2, 50)
    node = node_of(ctx, q.scaled_dot_product_attention(ctx, k, v, scale=1.0))
    assert op_costs.multiplications(node) == 4 * 2 * 50 * 8 + 4 * 2 * 50 * 6


def test_a_product_is_named_with_the_dtype_of_its_weight_and_placed_in_its_layer(ctx: Context) -> None:
    x = ctx.zeros(DType.F32, 4)
    node = node_of(ctx, x.neg(ctx.layer(3)))
    assert (op_costs.op_label(node), op_costs.layer_label(node, 8), op_costs.layer_label(node, 3)) == (
        "neg",
        "3",
        "output",
    )
    assert op_costs.layer_label(node_of(ctx, x.neg(ctx.input())), 3) == "input"
    assert op_costs.layer_label(node_of(ctx, x.sqr(ctx)), 3) == "no layer"
