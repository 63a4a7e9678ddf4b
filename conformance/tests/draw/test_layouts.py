"""What a layout does to arrays is what its views do to tensors."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import DType, Precision
from backbay_conformance import Draw, lab_for
from backbay_conformance.draw.data import Bits, DistinctIds
from backbay_conformance.draw.layout import Layout, duplicated, found, permuted
from backbay_conformance.draw.operand import Operand
from backbay_conformance.kernels.one_kernel import OneKernelBackend
from backbay_conformance.numbers.comparison import compare_bits
from backbay_conformance.numbers.encoding import from_bytes
from backbay_conformance.suite.lab import Lab

F32 = Precision(DType.F32, DType.F32)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return lab_for("cpu_ref")


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.Q4_0, DType.Q6_K], ids=str)
def test_elements_are_found_where_they_were_put(lab: Lab, dtype: DType) -> None:
    for turn in range(150):
        draw = Draw(f"layout/{dtype}/{turn}", turn)
        shape = (dtype.block_size * draw.pick(1, 2, 3), *draw.sides(draw.below(4), 60))
        operand = draw.operand(dtype, shape, Bits())
        operand.make("wide", F32, 0)
        with lab.backend.new_context() as ctx:
            leaf = operand.leaf(ctx)
            operand.write(leaf)
            seen = operand.layout.trace(ctx, leaf)
            assert seen.shape == operand.shape, str(operand)
            ctx.compute(seen)
            got = from_bytes(seen.bytes(), dtype, seen.shape)
        compare_bits(operand.stored, got, dtype, None, str(operand))


@pytest.mark.parametrize("largest", [True, False])
def test_a_graph_finds_the_ids_that_were_drawn(lab: Lab, largest: bool) -> None:
    layout = Layout((found((3, 4), 9, largest=largest),))
    operand = Operand(DType.I32, (3, 4), DistinctIds(9), layout, 1)
    operand.make("wide", F32, 0)
    with lab.backend.new_context() as ctx:
        leaf = operand.leaf(ctx)
        operand.write(leaf)
        seen = operand.layout.trace(ctx, leaf)
        ctx.compute(seen)
        assert np.array_equal(seen.numpy(), operand.stored)


def test_a_program_leaves_out_a_copy_that_the_backend_lacks(lab: Lab) -> None:
    layout = Layout((duplicated(DType.F32, (2, 3)), permuted(DType.F32, (3, 2), (1, 0))))
    assert layout.code(lab.backend, DType.F32) == ".duplicate(ctx).permute(ctx, 1, 0)"
    alone = lab_for(OneKernelBackend, {"op": "neg", "kernel": "numpy:negative"})
    assert layout.code(alone.backend, DType.F32) == ".permute(ctx, 1, 0)"


def test_variants_are_other_data_of_the_same_kind() -> None:
    operand = Draw("variant").operand(DType.F32, (33,))
    operand.make("wide", F32, 0)
    first = operand.decoded.copy()
    operand.make("wide", F32, 1)
    assert not np.array_equal(first, operand.decoded)
    operand.make("wide", F32, 0)
    assert np.array_equal(first, operand.decoded, equal_nan=True)


@pytest.mark.parametrize("kind", [DType.F16, DType.BF16, DType.F32])
def test_exact_data_fit_the_activation_type(kind: DType) -> None:
    from backbay_conformance.numbers.encoding import round_to

    operand = Draw("exact").operand(DType.F32, (513,), activated=True)
    operand.make("exact", Precision(kind, DType.F32), 0)
    assert np.array_equal(round_to(operand.decoded, kind), operand.decoded)
    assert np.abs(operand.decoded).max() > 100


def test_exact_data_fit_blocks_of_8_bits() -> None:
    from gguf import GGMLQuantizationType, quants

    operand = Draw("blocks").operand(DType.F32, (96, 5), activated=True)
    operand.make("exact", Precision(DType.Q8_0, DType.F32), 0)
    x = operand.decoded.astype(np.float32)
    back = quants.dequantize(quants.quantize(x, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    assert np.array_equal(back, x)
