"""Refusals that the conformance suite's table of misuse leaves out: the error names the op, its operands and the wrong numbers."""

import math
import re

import pytest

from backbay import DType, DTypeError, ShapeError, Spec
from backbay.ops import Yarn

F32, F16, BF16, I32, I64 = DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64
Q8_0, F64 = DType.Q8_0, DType.F64
NAN, INF = math.nan, math.inf


def t(dtype, *shape):
    """A tensor to be made in the test's context."""
    return Spec(dtype, shape)


def strided(ctx):
    """A tensor without contiguous rows: every second element of dimension 0."""
    return ctx.zeros(F32, 8).slice(ctx, 0, 0, 8, 2)


def made(ctx, value):
    if isinstance(value, Spec):
        return ctx.zeros(value.dtype, *value.shape)
    return value(ctx) if callable(value) else value


def refuses(ctx, op, operands, error, message, **keywords):
    x, *others = (made(ctx, value) for value in operands)
    with pytest.raises(error, match=rf"^{op}: .*{re.escape(message)}"):
        getattr(x, op)(ctx, *others, **{name: made(ctx, value) for name, value in keywords.items()})


FLOAT_ONLY = [
    "neg", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu", "gelu_erf", "quick_gelu", "softplus",
    "layer_norm", "rms_norm", "l2_norm", "sum_rows", "mean", "variance", "stddev", "cumsum",
]  # fmt: skip
FLOAT_FIRST = [
    ("clamp", [0.0, 1.0]), ("scale", [1.0]), ("top_k", [1]), ("pad_ext", [1, 1]), ("add", [t(F32, 32)]),
    ("sub", [t(F32, 32)]), ("mul", [t(F32, 32)]), ("div", [t(F32, 32)]), ("swiglu", [t(F32, 32), 1.0, 1.0]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [I32, I64, Q8_0], ids=str)
@pytest.mark.parametrize(("op", "others"), [*[(op, []) for op in FLOAT_ONLY], *FLOAT_FIRST])
def test_ops_that_compute_take_floats_only(ctx, op, others, dtype):
    message = f"the receiver must be f32, f16 or bf16, got {dtype}; cast it first"
    refuses(ctx, op, [t(dtype, 32), *others], DTypeError, message)


KERNELS, IMAGES = t(F32, 3, 3, 2, 4), t(F32, 8, 6, 2, 1)
SQUARE = t(F32, 3, 3, 2)
HEADS, TOKENS, COMPONENTS = t(F32, 8, 2, 3), t(I32, 3), t(I32, 12)
SECTIONED = "multi-section"

# fmt: off
MISUSE = [  # one on a line
    # elementwise
    ("relu", [t(F32, 4, 2), t(F32, 4, 3)], ShapeError, "f32[4,2] x f32[4,3]: up must have the receiver's shape"),
    ("silu", [t(F32, 4), t(I32, 4)], DTypeError, "up must be f32, f16 or bf16, got i32"),
    ("gelu", [t(F32, 4), 3.0], DTypeError, "up must be a Tensor, got 3.0"),
    ("swiglu", [t(F32, 4), t(F32, 4), 1.0, NAN], ShapeError, "limit must not be negative, got nan"),
    ("clamp", [t(F32, 4), NAN, 1.0], ShapeError, "min must not exceed max, got nan and 1.0"),
    ("scale", [t(F32, 4), 10**400], ShapeError, "s must fit a float"),
    ("fill", [t(Q8_0, 32), 1.0], DTypeError, "must be f32, f16 or bf16, got q8_0; cast it first"),
    ("cast", [t(F32, 4), F64], DTypeError, "dtype must be one that tensors may hold, got f64"),
    # binary
    ("mul", [t(F32, 6), t(F32, 6, 2)], ShapeError, "dimension 1 must repeat to the first operand's, 2 does not divide 1"),
    ("div", [t(F32, 6), t(F32, 0)], ShapeError, "0 does not divide 6"),
    ("sub", [t(F32, 6), t(I32, 6)], DTypeError, "f32[6] x i32[6]: the second operand must be f32, f16 or bf16"),
    # matrix
    ("mulmat_full_prec", [t(F32, 4, 8, 1, 2), t(F32, 4, 3)], ShapeError, "dimension 3 of the receiver must divide the other's"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 5, 1, 3), t(I32, 2, 3)], ShapeError, "dimension 0 must match, 4 != 5"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 4, 3, 3), t(I32, 2, 3)], ShapeError, "dimension 1 must be 1 or the 2 used experts"),
    ("mulmat_id", [t(F32, 4, 8, 2, 2), t(F32, 4, 2, 3), t(I32, 2, 3)], ShapeError, "at most 3 dimensions, for ids at most 2"),
    ("add_id", [t(F32, 4, 2, 3), t(F32, 4, 6, 2), t(I32, 2, 3)], ShapeError, "the second operand must have at most 2 dimensions"),
    ("add_id", [t(F32, 4, 2, 3), t(F32, 4, 6), t(I32, 3, 3)], ShapeError, "ids must be (2, 3), got [3, 3]"),
    ("add_id", [t(F32, 4, 2, 3), t(I32, 4, 6), t(I32, 2, 3)], DTypeError, "the second operand must be f32"),
    # norm, order
    ("layer_norm", [t(F32, 4, 2), t(I32, 4)], DTypeError, "weight must be f32, f16 or bf16, got i32"),
    ("l2_norm", [t(F32, 4), NAN], ShapeError, "eps must not be negative, got nan"),
    ("top_k", [t(F32, 4), 1.5], DTypeError, "k must be an integer, got 1.5"),
    ("top_k", [t(F32, 4), 1 << 64], ShapeError, "k must fit 64 bits"),
    # shape
    ("view", [t(F32, 4), 0, (-1,)], ShapeError, "a dimension is negative: [-1]"),
    ("view", [t(F32, 4), 0, (1, 2), (1 << 62,)], ShapeError, "are outside of the 16 bytes"),
    ("view", [t(F32, 4), 0, 4], DTypeError, "shape must be a sequence of integers, got 4"),
    ("slice", [t(F32, 4, 3), 1, -1, 2], ShapeError, "got -1 and 2"),
    ("slice", [t(DType.Q8_0, 64), 0, 16, 64], ShapeError, "is sliced in whole blocks of 32, got 16:64:1"),
    ("slice", [t(DType.Q8_0, 64), 0, 0, 64, 2], ShapeError, "is sliced in whole blocks of 32, got 0:64:2"),
    ("chunk", [t(F32, 4), 1, 2], ShapeError, "dim must be in [0, 0], got 1"),
    ("chunk_sections", [t(F32, 4), 0, 5, -1], ShapeError, "a section is negative: [5, -1]"),
    ("pad", [t(F32, 4), 1, 1, 1, 1, 1], ShapeError, "at most 4 amounts, got 5"),
    ("pad_ext", [t(F32, 4), 0, -2], ShapeError, "an amount is negative: [0, -2, 0, 0, 0, 0, 0, 0]"),
    ("pad_ext", [t(F32, 4), 0, 1 << 62], ShapeError, "is too large"),
    ("stack", [t(F32, 4), 0, t(F32, 4, 2)], ShapeError, "dimension 1 must match, 1 != 2"),
    ("repeat", [t(F32, 4), -1, 2], ShapeError, "dim must be in [0, 3], got -1"),
    ("repeat", [t(F32, 4), 0, 1 << 62], ShapeError, "is too large"),
    ("repeat_4d", [t(F32, 0), 6], ShapeError, "0 does not divide 6"),
    # write, index
    ("set", [t(F32, 4), t(F32, 1, 2), 0, 6], ShapeError, "strides must be whole elements of 4 bytes, got [6]"),
    ("set", [t(F32, 4), t(F32, 1, 2), 0, -4], ShapeError, "strides must be whole elements of 4 bytes, got [-4]"),
    ("set", [t(F32, 4, 4), t(F32, 1, 2, 2), 0, 4], ShapeError, "one stride for each dimension from 1 up, 1 for rank 3"),
    ("set", [strided, t(F32, 2), 0], ShapeError, "must adjoin in dimension 0, but they begin 8 bytes apart"),
    ("set", [t(Q8_0, 64), t(F32, 16), 0], ShapeError, "dimension 0 of q8_0 must be a multiple of 32, got 16"),
    ("set_rows", [t(F32, 4, 6), t(F32, 4, 2), t(F32, 2)], DTypeError, "ids must be i32 or i64, got f32"),
    ("set_rows", [t(F32, 4, 6, 2), t(F32, 4, 2, 3), t(I32, 2)], ShapeError, "dimension 2 must match, 2 != 3"),
    ("set_rows", [t(F32, 4, 6, 3), t(F32, 4, 2, 3), t(I32, 2, 2)], ShapeError, "dimension 1 of ids must divide 3, got 2"),
    ("set_rows", [t(F32, 4, 6), t(F32, 4, 2), t(I32, 2, 1, 1, 2)], ShapeError, "ids must have at most 3 dimensions"),
    ("rows", [t(I64, 4, 6), t(I32, 2)], DTypeError, "the receiver must not be i64"),
    ("rows", [t(F32, 4, 6, 2), t(I32, 2, 3)], ShapeError, "dimension 2 must be 1 or that of ids, 2 != 3"),
    ("rows", [t(F32, 4, 6), t(I32, 1, 1, 1, 2)], ShapeError, "ids must have at most 3 dimensions, got [1, 1, 1, 2]"),
    # spatial
    ("conv2d", (KERNELS, IMAGES, 1, -2), ShapeError, "the stride along height must be in [1, 2^30], got -2"),
    ("conv2d", (KERNELS, IMAGES, 1, 1, 0, 1 << 31), ShapeError, "the padding along height must be in [0, 2^30], got 2147483648"),
    ("conv2d", (KERNELS, IMAGES, 1, 1, 0, 0, 0), ShapeError, "the dilation along width must be in [1, 2^30], got 0"),
    ("conv2d", (t(F32, 0, 3, 2, 4), IMAGES), ShapeError, "the kernel is empty along width"),
    ("conv2d", (t(I32, 3, 3, 2, 4), IMAGES), DTypeError, "the receiver must be f32, f16 or bf16, got i32; cast it first"),
    ("im2col", (KERNELS, t(I32, 8, 6, 2)), DTypeError, "the data must be f32, f16 or bf16, got i32; cast it first"),
    ("conv3d", (KERNELS, IMAGES, 0), ShapeError, "c, the input channels, must be at least 1, got 0"),
    ("conv3d", (KERNELS, IMAGES, 2), ShapeError, "dimension 3 of the data must be a multiple of the 2 channels, got 1"),
    ("conv3d", (KERNELS, IMAGES, 1, 1, 1, 0), ShapeError, "the stride along depth must be in [1, 2^30], got 0"),
    ("conv1d_dw", (t(F32, 9, 4, 1, 2), t(F32, 3, 1, 4)), ShapeError, "the receiver must have at most 3 dimensions, got [9, 4, 1, 2]"),
    ("conv1d_dw", (t(F32, 2, 4), t(F32, 3, 1, 4)), ShapeError, "along dimension 0 the kernel spans 3, more than the 2 of the padded data"),
    ("avg_pool2d", (IMAGES, 2, 0), ShapeError, "the stride s must be in [1, 2^30], got 0"),
    ("avg_pool2d", (IMAGES, 2, 1, NAN), ShapeError, "the padding p must be a multiple of 0.5 in [0, 2^30], got nan"),
    ("avg_pool2d", (IMAGES, 2, 1, INF), ShapeError, "the padding p must be a multiple of 0.5 in [0, 2^30], got inf"),
    ("interpolate", (IMAGES, (4, -4, 2, 1)), ShapeError, "dims must not be negative, got (4, -4, 2, 1)"),
    ("interpolate", (t(F32, 4, 0), (4, 4)), ShapeError, "an empty tensor cannot be resampled to (4, 4)"),
    # linear algebra
    ("diag", (t(I32, 3),), DTypeError, "the receiver must be f32, f16 or bf16, got i32; cast it first"),
    ("tri", (t(I64, 3, 3), "lower"), DTypeError, "the receiver must be f32, f16 or bf16, got i64; cast it first"),
    ("solve_tri", (t(F32, 3, 4), SQUARE), ShapeError, "dimensions 0 and 1 must be equal, 3 != 4"),
    ("solve_tri", (SQUARE, t(F32, 1, 3, 4)), ShapeError, "dimensions 2 and 3 must match, [2] != [4]"),
    ("solve_tri", (SQUARE, t(I32, 1, 3, 2)), DTypeError, "the second operand must be f32, f16 or bf16, got i32; cast it first"),
    ("solve_tri", (t(Q8_0, 32, 32), t(F32, 1, 32)), DTypeError, "the receiver must be f32, f16 or bf16, got q8_0; cast it first"),
    ("solve_tri", (SQUARE, SQUARE, 1), DTypeError, "lower must be True or False, got 1"),
    # sequence
    ("ssm_conv", (t(F32, 2, 3), t(F32, 0, 3)), ShapeError, "dimension 0 of the weight must be at least 1, got 0"),
    ("ssm_conv", (t(F32, 5, 3), t(F32, 4, 3, 2)), ShapeError, "the weight must have at most 2 dimensions, got [4, 3, 2]"),
    ("ssm_conv", (t(F32, 5, 3, 1, 2), t(F32, 4, 3)), ShapeError, "the receiver must have at most 3 dimensions, got [5, 3, 1, 2]"),
    ("ssm_conv", (t(F32, 5, 3), t(I32, 4, 3)), DTypeError, "the weight must be f32, f16 or bf16, got i32; cast it first"),
    ("rope", (t(I32, 8, 2, 3), TOKENS, 8, 1e4), DTypeError, "the receiver must be f32, f16 or bf16, got i32; cast it first"),
    ("rope", (t(F32, 7, 2, 3), TOKENS, 6, 1e4), ShapeError, "dimension 0, the head, must be even, got 7"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, "vision"), ShapeError, "dim must be half of dimension 0 in vision, 8 != 8 / 2"),
    ("rope", (HEADS, t(I32, 3, 4), 8, 1e4), ShapeError, "positions must have at most 1 dimensions, got [3, 4]"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, SECTIONED), ShapeError, "one of the first three sections must be above 0, got (0, 0, 0, 0)"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, SECTIONED, None, (0, 0, 0, 4)), ShapeError, "one of the first three sections must be above 0, got (0, 0, 0, 4)"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, SECTIONED, None, (4, 4, 4, 0)), ShapeError, "sections must add up to at most 8, dimension 0, got (4, 4, 4, 0)"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, SECTIONED, None, (4, -1, 0, 0)), ShapeError, "sections must be four numbers >= 0, got (4, -1, 0, 0)"),
    ("rope", (HEADS, COMPONENTS, 8, 1e4, 1.0, SECTIONED, None, (4, 4)), ShapeError, "sections must be four numbers >= 0, got (4, 4)"),
    ("rope", (HEADS, COMPONENTS, 4, 1e4, 1.0, "vision", None, (2, 1, 1, 0)), ShapeError, "the first two sections must add up to dim, 4, got (2, 1, 1, 0)"),
    ("rope", (HEADS, TOKENS, 8, 1e4, 1.0, "normal", t(F16, 4)), DTypeError, "factors must be f32, got f16"),
    ("rope", (HEADS, TOKENS, 8, 1e4, 1.0, "normal", t(F32, 4, 2)), ShapeError, "factors must have at most 1 dimensions, got [4, 2]"),
    ("rope", (HEADS, TOKENS, 8, NAN), ShapeError, "base must be above 0 and finite, got nan"),
    ("rope", (HEADS, TOKENS, 8, INF), ShapeError, "base must be above 0 and finite, got inf"),
    ("rope", (HEADS, TOKENS, 8, 1e4, NAN), ShapeError, "scale must be finite, got nan"),
]
# fmt: on


@pytest.mark.parametrize(("op", "operands", "error", "message"), MISUSE)
def test_misuse_is_refused_with_the_wrong_numbers(ctx, op, operands, error, message):
    refuses(ctx, op, operands, error, message)


QUERY, HISTORY = t(F32, 4, 2, 3), t(F32, 4, 2, 5)

# fmt: off
ATTENTION = [  # query, key, value, the rest; one on a line
    ([t(I32, 4, 2, 3), HISTORY, HISTORY], {}, DTypeError, "query must be f32, f16 or bf16, got i32"),
    ([QUERY, t(I32, 4, 2, 5), HISTORY], {}, DTypeError, "key must be a float or a quantized type, got i32"),
    ([QUERY, HISTORY, t(I64, 4, 2, 5)], {}, DTypeError, "value must be a float or a quantized type, got i64"),
    ([QUERY, t(F32, 4, 2, 5, 2), HISTORY], {}, ShapeError, "batch must match, 1, 2, 1"),
    ([QUERY, HISTORY, HISTORY], {"mask": t(BF16, 5, 3)}, DTypeError, "mask must be f32 or f16, got bf16"),
    ([t(F32, 4, 4, 3), HISTORY, HISTORY], {"mask": t(F32, 5, 3, 2)}, ShapeError, "dimension 2 of mask must be 1 or 4, got 2"),
    ([QUERY, HISTORY, HISTORY], {"mask": t(F32, 5, 3, 1, 2)}, ShapeError, "dimension 3 of mask must be 1 or 1, got 2"),
    ([QUERY, HISTORY, HISTORY], {"sinks": t(I32, 2)}, DTypeError, "sinks must be f32, f16 or bf16, got i32"),
    ([QUERY, HISTORY, HISTORY], {"vmla": t(F32, 4, 7, 3)}, ShapeError, "vmla must be (4, e, 2), got [4, 7, 3]"),
    ([QUERY, HISTORY, HISTORY], {"vmla": t(I32, 4, 7, 2)}, DTypeError, "vmla must be a float or a quantized type"),
]
SCAN = {
    "s": t(F32, 4, 3, 6, 5), "x": t(F32, 3, 6, 7, 2), "dt": t(F32, 6, 7, 2), "A": t(F32, 1, 6),
    "B": t(F32, 4, 2, 7, 2), "C": t(F32, 4, 2, 7, 2), "ids": t(I32, 2),
}
SCANS = [  # changed operands; one on a line
    ({"s": t(F32, 4, 2, 6, 5)}, ShapeError, "the receiver must be [4, 3, 6, 5], got [4, 2, 6, 5]"),
    ({"dt": t(F32, 6, 7)}, ShapeError, "dt must be [6, 7, 2], got [6, 7]"),
    ({"A": t(F32, 2, 6)}, ShapeError, "dimension 0 of A must be 1 or the 4 states, got 2"),
    ({"A": t(F32, 1, 5)}, ShapeError, "A must be [1, 6], got [1, 5]"),
    ({"C": t(F32, 4, 3, 7, 2)}, ShapeError, "C must be [4, 2, 7, 2], got [4, 3, 7, 2]"),
    ({n: t(F32, 4, 4, 7, 2) for n in "BC"}, ShapeError, "the 4 groups of B must divide the 6 heads"),
    ({n: t(F32, 4, 0, 7, 2) for n in "BC"}, ShapeError, "the 0 groups of B must divide the 6 heads"),
    ({"ids": t(I32, 3)}, ShapeError, "ids must be [2], got [3]"),
    ({"ids": t(F32, 2)}, DTypeError, "ids must be i32, got f32"),
    ({"dt": t(I32, 6, 7, 2)}, DTypeError, "dt must be f32, f16 or bf16, got i32; cast it first"),
]
RULE = {
    "s": t(F32, 4, 3, 6, 2), "q": t(F32, 4, 6, 7, 2), "k": t(F32, 4, 6, 7, 2), "v": t(F32, 3, 6, 7, 2),
    "decay": t(F32, 1, 6, 7, 2), "share": t(F32, 1, 6, 7, 2), "removed": None,
}
DELTA_RULES = [  # changed operands; one on a line
    ({"s": t(F32, 4, 2, 6, 2)}, ShapeError, "the receiver must be [4, 3, 6, 2], got [4, 2, 6, 2]"),
    ({"s": t(F32, 5, 3, 6, 2)}, ShapeError, "q must be [5, 6, 7, 2], got [4, 6, 7, 2]"),
    ({"k": t(F32, 4, 6, 8, 2)}, ShapeError, "k must be [4, 6, 7, 2], got [4, 6, 8, 2]"),
    ({"decay": t(F32, 6, 7, 2)}, ShapeError, "decay must be [4, 6, 7, 2], got [6, 7, 2]"),
    ({"share": t(F32, 4, 6, 7, 2)}, ShapeError, "share must be [1, 6, 7, 2], got [4, 6, 7, 2]"),
    ({"share": t(F32, 2, 6, 7, 2), "removed": t(F32, 4, 6, 7, 2)}, ShapeError, "share must be [4, 6, 7, 2], got [2, 6, 7, 2]"),
    ({"removed": t(F32, 1, 6, 7, 2)}, ShapeError, "removed must be [4, 6, 7, 2], got [1, 6, 7, 2]"),
    ({"decay": t(I32, 1, 6, 7, 2)}, DTypeError, "decay must be f32, f16 or bf16, got i32; cast it first"),
]
YARNS = [  # base, scale, yarn; one on a line
    (1e4, 1.0, Yarn(0), ShapeError, "n_ctx_orig must be in [1, 2^31), got 0"),
    (1e4, 1.0, Yarn(1 << 31), ShapeError, "n_ctx_orig must be in [1, 2^31), got 2147483648"),
    (1.0, 1.0, Yarn(64), ShapeError, "base must not be 1 with yarn"),
    (1e4, 1.0, Yarn(64, beta_slow=0.0), ShapeError, "beta_fast and beta_slow must be above 0, got Yarn(n_ctx_orig=64, ext_factor=1.0, attn_factor=1.0, beta_fast=32.0, beta_slow=0.0)"),
    (1e4, 1.0, Yarn(64, attn_factor=NAN), ShapeError, "yarn must be finite, got Yarn(n_ctx_orig=64, ext_factor=1.0, attn_factor=nan, beta_fast=32.0, beta_slow=1.0)"),
    (1e4, 1.0, (64, 1.0), DTypeError, "yarn must be Yarn(n_ctx_orig, ext_factor, attn_factor, beta_fast, beta_slow), got tuple"),
    (1e4, 1.0, (64.0, 1, 1, 32, 1), DTypeError, "yarn.n_ctx_orig must be an integer, got 64.0"),
]
# fmt: on


@pytest.mark.parametrize(("operands", "keywords", "error", "message"), ATTENTION)
def test_attention_refuses_operands_that_do_not_fit(ctx, operands, keywords, error, message):
    refuses(ctx, "scaled_dot_product_attention", operands, error, message, scale=1.0, **keywords)


@pytest.mark.parametrize(("changed", "error", "message"), SCANS)
def test_a_scan_refuses_operands_that_do_not_fit(ctx, changed, error, message):
    refuses(ctx, "ssm_scan", {**SCAN, **changed}.values(), error, message)


@pytest.mark.parametrize(("changed", "error", "message"), DELTA_RULES)
def test_a_delta_rule_refuses_operands_that_do_not_fit(ctx, changed, error, message):
    refuses(ctx, "delta_rule", {**RULE, **changed}.values(), error, message)


@pytest.mark.parametrize(("base", "scale", "yarn", "error", "message"), YARNS)
def test_yarn_is_refused_with_the_wrong_numbers(ctx, base, scale, yarn, error, message):
    refuses(ctx, "rope", [HEADS, TOKENS, 8, base, scale], error, message, yarn=yarn)


def test_a_missing_or_unknown_argument_is_a_type_error(ctx):
    x = ctx.from_floats([1.0])
    for wrong in (lambda: x.scale(ctx), lambda: x.scale(ctx, 1.0, 2.0), lambda: x.neg(ctx, eps=1.0)):
        with pytest.raises(TypeError, match=r"argument|must be given"):
            wrong()
