"""Misuse of every op: the error names the op, its operands, and the wrong numbers."""

import math
import re

import pytest
from exact import leaf

from backbay import DType, DTypeError, ShapeError

F32, F16, BF16, I32, I64 = DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64
Q8_0, Q4_K, F64 = DType.Q8_0, DType.Q4_K, DType.F64
NAN, INF = math.nan, math.inf

FLOAT_ONLY = [
    "neg", "sqr", "sqrt", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu", "gelu_erf", "quick_gelu",
    "softplus", "softmax", "layer_norm", "rms_norm", "l2_norm", "sum_rows", "mean", "variance", "stddev", "cumsum",
    "argsort", "pad",
]  # fmt: skip
FLOAT_FIRST = [
    ("clamp", [0.0, 1.0]), ("scale", [1.0]), ("top_k", [1]), ("pad_ext", [1, 1]),
    ("add", [F32, 32]), ("sub", [F32, 32]), ("mul", [F32, 32]), ("div", [F32, 32]), ("swiglu", [F32, 32, 1.0, 1.0]),
]  # fmt: skip


def t(dtype, *shape):
    """A tensor to be made in the test's context."""
    return lambda ctx: ctx.zeros(dtype, *shape)


def strided(*shape):
    """A tensor without contiguous rows: every second element of dimension 0."""
    return lambda ctx: ctx.zeros(F32, 2 * shape[0], *shape[1:]).slice(ctx, 0, 0, 2 * shape[0], 2)


def computed(dtype, *shape):
    return lambda ctx: ctx.zeros(F32, *shape).cast(ctx, dtype)


MISUSE = [
    # elementwise
    ("relu", [t(F32, 4, 2), t(F32, 4, 3)], ShapeError, "f32[4,2] x f32[4,3]: up must have the receiver's shape"),
    ("silu", [t(F32, 4), t(I32, 4)], DTypeError, "up must be f32, f16 or bf16, got i32"),
    ("gelu", [t(F32, 4), 3.0], DTypeError, "up must be a Tensor, got 3.0"),
    ("swiglu", [t(F32, 4), t(F32, 4), 1.0, -1.0], ShapeError, "limit must not be negative, got -1.0"),
    ("swiglu", [t(F32, 4), t(F32, 4), 1.0, NAN], ShapeError, "limit must not be negative, got nan"),
    ("clamp", [t(F32, 4), 2.0, 1.0], ShapeError, "min must not exceed max, got 2.0 and 1.0"),
    ("clamp", [t(F32, 4), NAN, 1.0], ShapeError, "min must not exceed max, got nan and 1.0"),
    ("clamp", [t(F32, 4), "a", 1.0], DTypeError, "min must be a number, got 'a'"),
    ("scale", [t(F32, 4), 10**400], ShapeError, "s must fit a float"),
    ("fill", [t(I32, 4), 2.0**31], ShapeError, "i32 cannot hold 2147483648.0"),
    ("fill", [t(Q8_0, 32), 1.0], DTypeError, "must be f32, f16 or bf16, got q8_0; cast it first"),
    ("cast", [t(F32, 33), Q8_0], ShapeError, "f32[33]: dimension 0 of q8_0 must be a multiple of 32, got 33"),
    ("cast", [t(F32), Q8_0], ShapeError, "dimension 0 of q8_0 must be a multiple of 32, got 1"),
    ("cast", [t(F32, 4), F64], DTypeError, "dtype must be one that tensors may hold, got f64"),
    ("cast", [t(F32, 4), "f16"], DTypeError, "dtype must be a DType, got 'f16'"),
    # binary
    ("add", [t(F32, 6, 4), t(F32, 4, 4)], ShapeError, "dimension 0 must repeat to the first operand's, 4 does not divide 6"),
    ("mul", [t(F32, 6), t(F32, 6, 2)], ShapeError, "dimension 1 must repeat to the first operand's, 2 does not divide 1"),
    ("div", [t(F32, 6), t(F32, 0)], ShapeError, "0 does not divide 6"),
    ("sub", [t(F32, 6), t(I32, 6)], DTypeError, "f32[6] x i32[6]: the second operand must be f32, f16 or bf16"),
    ("add", [t(F32, 6), 1.0], DTypeError, "t2 must be a Tensor, got 1.0"),
    # matrix
    ("mulmat", [t(F32, 64, 8), t(F32, 32, 3)], ShapeError, "f32[64,8] x f32[32,3]: dimension 0 must match, 64 != 32"),
    ("mulmat", [t(I32, 4, 8), t(F32, 4)], DTypeError, "the receiver must be a float or a quantized type, got i32"),
    ("mulmat", [t(F32, 32, 8), t(Q8_0, 32)], DTypeError, "the second operand must be f32, f16 or bf16, got q8_0"),
    ("mulmat", [t(F32, 4, 8, 2), t(F32, 4, 3, 3)], ShapeError, "dimension 2 of the receiver must divide the other's, 2 does not divide 3"),
    ("mulmat_full_prec", [t(F32, 4, 8, 1, 2), t(F32, 4, 3)], ShapeError, "dimension 3 of the receiver must divide the other's"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 5, 1, 3), t(I32, 2, 3)], ShapeError, "dimension 0 must match, 4 != 5"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 4, 1, 4), t(I32, 2, 3)], ShapeError, "dimension 2 must be the 3 tokens of ids, got 4"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 4, 3, 3), t(I32, 2, 3)], ShapeError, "dimension 1 must be 1 or the 2 used experts"),
    ("mulmat_id", [t(F32, 4, 8, 2, 2), t(F32, 4, 2, 3), t(I32, 2, 3)], ShapeError, "at most 3 dimensions, for ids at most 2"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 4, 2, 3), t(I64, 2, 3)], DTypeError, "ids must be i32, got i64"),
    ("mulmat_id", [t(F32, 4, 8, 2), t(F32, 4, 2, 3), computed(I32, 2, 3)], DTypeError, "ids must be a leaf, a view of one, or come from"),
    ("mulmat_id", [t(F32, 4, 8, 0), t(F32, 4, 2, 3), t(I32, 2, 3)], ShapeError, "must be in [0, 0), got 0"),
    ("add_id", [t(F32, 4, 2, 3), t(F32, 5, 6), t(I32, 2, 3)], ShapeError, "dimension 0 must match, 4 != 5"),
    ("add_id", [t(F32, 4, 2, 3), t(F32, 4, 6, 2), t(I32, 2, 3)], ShapeError, "the second operand must have at most 2 dimensions"),
    ("add_id", [t(F32, 4, 2, 3), t(F32, 4, 6), t(I32, 3, 3)], ShapeError, "ids must be (2, 3), got [3, 3]"),
    ("add_id", [t(F32, 4, 2, 3), t(I32, 4, 6), t(I32, 2, 3)], DTypeError, "the second operand must be f32"),
    # norm, order
    ("layer_norm", [t(F32, 4, 2), t(F32, 4), t(F32, 3)], ShapeError, "bias must have shape (4,), got [3]"),
    ("layer_norm", [t(F32, 4, 2), t(I32, 4)], DTypeError, "weight must be f32, f16 or bf16, got i32"),
    ("rms_norm", [t(F32, 4, 2), t(F32, 2)], ShapeError, "f32[4,2] x f32[2]: weight must have shape (4,), got [2]"),
    ("rms_norm", [t(F32, 4, 2), None, -1.0], ShapeError, "eps must not be negative, got -1.0"),
    ("l2_norm", [t(F32, 4), NAN], ShapeError, "eps must not be negative, got nan"),
    ("top_k", [t(F32, 4), 5], ShapeError, "k must be in [0, 4], got 5"),
    ("top_k", [t(F32, 4), -1], ShapeError, "k must be in [0, 4], got -1"),
    ("top_k", [t(F32, 4), 1.5], DTypeError, "k must be an integer, got 1.5"),
    ("top_k", [t(F32, 4), 1 << 64], ShapeError, "k must fit 64 bits"),
    # shape
    ("reshape", [t(F32, 4, 3), 5, 2], ShapeError, "f32[4,3]: [5, 2] has 10 elements, not 12"),
    ("reshape", [t(F32, 4, 3), -1, -1], ShapeError, "-1 cannot be inferred in [-1, -1] for 12 elements"),
    ("reshape", [t(F32, 4, 3), -1, 5], ShapeError, "-1 cannot be inferred"),
    ("reshape", [t(F32, 4, 0), -1, 0], ShapeError, "-1 cannot be inferred"),
    ("reshape", [strided(4, 3), 12], ShapeError, "the receiver must be contiguous; call contiguous(ctx) first"),
    ("reshape", [t(Q8_0, 64), 16, 4], ShapeError, "dimension 0 of q8_0 must be a multiple of 32, got 16"),
    ("reshape", [t(F32, 4), 1, 1, 1, 2, 2], ShapeError, "at most 4 dimensions"),
    ("reshape", [t(F32, 4), -4, -1], ShapeError, "-1 cannot be inferred"),
    ("view", [t(F32, 4), 4, (4,)], ShapeError, "bytes 4 to 20 are outside of the 16 bytes of f32[4]"),
    ("view", [t(F32, 4), -4, (1,)], ShapeError, "bytes -4 to 0 are outside"),
    ("view", [t(F32, 4), 2, (1,)], ShapeError, "offset 2 is not a multiple of 4 bytes"),
    ("view", [t(F32, 4), 0, (1, 2), (6,)], ShapeError, "stride 6 is not a multiple of 4 bytes"),
    ("view", [t(F32, 4), 0, (1, 2), (-4,)], ShapeError, "a stride is negative: [-4]"),
    ("view", [t(F32, 4), 0, (1, 2), (4, 4)], ShapeError, "2 dimensions need 1 strides, got 2"),
    ("view", [t(F32, 4), 0, (-1,)], ShapeError, "a dimension is negative: [-1]"),
    ("view", [t(Q8_0, 64), 32, (32,)], ShapeError, "offset 32 is not a multiple of 34 bytes"),
    ("view", [t(F32, 4), 0, (1, 2), (1 << 62,)], ShapeError, "are outside of the 16 bytes"),
    ("view", [t(F32, 4), 0, 4], DTypeError, "shape must be a sequence of integers, got 4"),
    ("permute", [t(F32, 4, 3), 0, 0], ShapeError, "axes must be a permutation of at least 2 and at most 4 dimensions, got [0, 0]"),
    ("permute", [t(F32, 4, 3), 0], ShapeError, "axes must be a permutation"),
    ("permute", [t(F32, 4, 3), 0, 1, 2, 3, 4], ShapeError, "axes must be a permutation"),
    ("permute", [t(Q8_0, 32, 3), 1, 0], ShapeError, "dimension 0 of q8_0 must stay in its place"),
    ("slice", [t(F32, 4, 3), 2, 0, 1], ShapeError, "dim must be in [0, 1], got 2"),
    ("slice", [t(F32, 4, 3), 0, 3, 2], ShapeError, "0 <= low <= high <= 4, got 3 and 2"),
    ("slice", [t(F32, 4, 3), 1, 0, 4], ShapeError, "0 <= low <= high <= 3, got 0 and 4"),
    ("slice", [t(F32, 4, 3), 1, -1, 2], ShapeError, "got -1 and 2"),
    ("slice", [t(F32, 4, 3), 1, 0, 2, 0], ShapeError, "step must be positive, got 0"),
    ("slice", [t(Q8_0, 64), 0, 16, 48], ShapeError, "dimension 0 of q8_0 is sliced in whole blocks of 32, got 16:48:1"),
    ("slice", [t(Q8_0, 64), 0, 0, 64, 2], ShapeError, "whole blocks of 32, got 0:64:2"),
    ("chunk", [t(F32, 4), 0, 0], ShapeError, "size must be positive, got 0"),
    ("chunk", [t(F32, 4), 1, 2], ShapeError, "dim must be in [0, 0], got 1"),
    ("chunk_sections", [t(F32, 4), 0, 1, 2], ShapeError, "sections add up to 3, not 4"),
    ("chunk_sections", [t(F32, 4), 0, 5, -1], ShapeError, "a section is negative: [5, -1]"),
    ("contiguous", [t(F32, 4), 3], ShapeError, "[3] has 3 elements, not 4"),
    ("pad", [t(F32, 4), -1], ShapeError, "an amount is negative"),
    ("pad", [t(F32, 4), 1, 1, 1, 1, 1], ShapeError, "at most 4 amounts, got 5"),
    ("pad_ext", [t(F32, 4), 0, -2], ShapeError, "an amount is negative: [0, -2, 0, 0, 0, 0, 0, 0]"),
    ("pad_ext", [t(F32, 4), 0, 1 << 62], ShapeError, "is too large"),
    ("concat", [t(F32, 4, 2), t(F32, 3, 2), 1], ShapeError, "f32[4,2] x f32[3,2]: dimension 0 must match, 4 != 3"),
    ("concat", [t(F32, 4), t(F16, 4), 0], DTypeError, "both must have one dtype, got f32 and f16; cast one"),
    ("concat", [t(F32, 4), t(F32, 4), 4], ShapeError, "dim must be in [0, 3], got 4"),
    ("stack", [t(F32, 4), 0, t(F32, 4, 2)], ShapeError, "dimension 1 must match, 1 != 2"),
    ("repeat", [t(F32, 4), 0, -1], ShapeError, "n must not be negative, got -1"),
    ("repeat", [t(F32, 4), -1, 2], ShapeError, "dim must be in [0, 3], got -1"),
    ("repeat", [t(Q8_0, 32), 1, 2], DTypeError, "the receiver must not be quantized, got q8_0; cast it first"),
    ("repeat", [t(F32, 4), 0, 1 << 62], ShapeError, "is too large"),
    ("repeat_4d", [t(F32, 4), 6], ShapeError, "dimension 0 does not repeat, 4 does not divide 6"),
    ("repeat_4d", [t(F32, 0), 6], ShapeError, "0 does not divide 6"),
    # write, index
    ("copy", [t(F32, 4), t(F32, 5)], ShapeError, "f32[4] x f32[5]: as many elements as the destination, 4 != 5"),
    ("copy", [t(F32, 4), computed(F16, 4)], DTypeError, "the destination must be a leaf, or a view of one, not what cast computes"),
    ("set", [t(F32, 4), t(F32, 2), 12], ShapeError, "bytes 12 to 20 are outside of the 16 bytes of f32[4]"),
    ("set", [t(F32, 4), t(F32, 2), -4], ShapeError, "offset must be whole elements of 4 bytes, got -4"),
    ("set", [t(F32, 4), t(F32, 2), 2], ShapeError, "offset must be whole elements of 4 bytes, got 2"),
    ("set", [t(F32, 4), t(F32, 1, 2), 0, 6], ShapeError, "strides must be whole elements of 4 bytes, got [6]"),
    ("set", [t(F32, 4), t(F32, 1, 2), 0, -4], ShapeError, "strides must be whole elements of 4 bytes, got [-4]"),
    ("set", [t(F32, 4, 4), t(F32, 1, 2, 2), 0, 4], ShapeError, "one stride for each dimension from 1 up, 1 for rank 3"),
    ("set", [strided(4), t(F32, 2), 0], ShapeError, "must adjoin in dimension 0, but they begin 8 bytes apart"),
    ("set", [t(Q8_0, 64), t(F32, 16), 0], ShapeError, "dimension 0 of q8_0 must be a multiple of 32, got 16"),
    ("set", [t(Q8_0, 64), t(F32, 32), 17], ShapeError, "offset must be whole elements of 34 bytes, got 17"),
    ("set", [computed(F16, 4), t(F32, 2), 0], DTypeError, "the destination must be a leaf"),
    ("set_rows", [t(F32, 4, 6), t(F32, 5, 2), t(I32, 2)], ShapeError, "dimension 0 must match, 4 != 5"),
    ("set_rows", [t(F32, 4, 6), t(F32, 4, 2), t(I32, 3)], ShapeError, "as many rows as ids, 2 != 3"),
    ("set_rows", [t(F32, 4, 6), t(F32, 4, 2), t(F32, 2)], DTypeError, "ids must be i32 or i64, got f32"),
    ("set_rows", [t(F32, 4, 6, 2), t(F32, 4, 2, 3), t(I32, 2)], ShapeError, "dimension 2 must match, 2 != 3"),
    ("set_rows", [t(F32, 4, 6, 3), t(F32, 4, 2, 3), t(I32, 2, 2)], ShapeError, "dimension 1 of ids must divide 3, got 2"),
    ("set_rows", [t(F32, 4, 6), t(F32, 4, 2), t(I32, 2, 1, 1, 2)], ShapeError, "ids must have at most 3 dimensions"),
    ("set_rows", [computed(F16, 4, 6), t(F32, 4, 2), t(I32, 2)], DTypeError, "the destination must be a leaf"),
    ("rows", [t(F32, 4, 6), t(I64, 2)], DTypeError, "ids must be i32, got i64"),
    ("rows", [t(I64, 4, 6), t(I32, 2)], DTypeError, "the receiver must not be i64"),
    ("rows", [t(F32, 4, 6, 2), t(I32, 2, 3)], ShapeError, "dimension 2 must be 1 or that of ids, 2 != 3"),
    ("rows", [t(F32, 4, 6), t(I32, 1, 1, 1, 2)], ShapeError, "ids must have at most 3 dimensions, got [1, 1, 1, 2]"),
    ("rows", [t(F32, 4, 6), computed(I32, 2)], DTypeError, "or come from top_k or argsort, not from cast"),
    ("rows", [t(F32, 4, 0), t(I32, 2)], ShapeError, "must be in [0, 0), got 0"),
]  # fmt: skip
ATTENTION = [  # query, key, value, the rest
    ([t(I32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {}, DTypeError, "query must be f32, f16 or bf16, got i32"),
    ([t(F32, 4, 2, 3), t(I32, 4, 2, 5), t(F32, 4, 2, 5)], {}, DTypeError, "key must be a float or a quantized type, got i32"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(I64, 4, 2, 5)], {}, DTypeError, "value must be a float or a quantized type, got i64"),
    ([t(F32, 4, 2, 3), t(F32, 6, 2, 5), t(F32, 4, 2, 5)], {}, ShapeError, "dimension 0 of query and key must match, 4 != 6"),
    ([t(F32, 4, 3, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {}, ShapeError, "kv_heads must divide heads, 2 does not divide 3"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5, 2), t(F32, 4, 2, 5)], {}, ShapeError, "batch must match, 1, 2, 1"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 1, 5)], {}, ShapeError, "value must have key's 2 kv_heads and 5 positions, got 1 and 5"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"softcap": -1.0}, ShapeError, "softcap must not be negative, got -1.0"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"mask": t(BF16, 5, 3)}, DTypeError, "mask must be f32 or f16, got bf16"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"mask": t(F32, 4, 3)}, ShapeError, "mask must cover 5 positions, got 4"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"mask": t(F32, 5, 2)}, ShapeError, "mask must have at least 3 rows, got 2"),
    ([t(F32, 4, 4, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"mask": t(F32, 5, 3, 2)}, ShapeError, "dimension 2 of mask must be 1 or 4, got 2"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"mask": t(F32, 5, 3, 1, 2)}, ShapeError, "dimension 3 of mask must be 1 or 1, got 2"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"sinks": t(F32, 3)}, ShapeError, "sinks must have shape (2,), got [3]"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"sinks": t(I32, 2)}, DTypeError, "sinks must be f32, f16 or bf16, got i32"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"vmla": t(F32, 4, 7, 3)}, ShapeError, "vmla must be (4, e, 2), got [4, 7, 3]"),
    ([t(F32, 4, 2, 3), t(F32, 4, 2, 5), t(F32, 4, 2, 5)], {"vmla": t(I32, 4, 7, 2)}, DTypeError, "vmla must be a float or a quantized type"),
]  # fmt: skip


def attempt(ctx, op, operands, keywords=None):
    x, *others = [value(ctx) if callable(value) else value for value in operands]
    given = {name: value(ctx) if callable(value) else value for name, value in (keywords or {}).items()}
    getattr(x, op)(ctx, *others, **given)


@pytest.mark.parametrize(("op", "operands", "error", "message"), MISUSE)
def test_misuse_is_refused_with_the_wrong_numbers(ctx, op, operands, error, message):
    with pytest.raises(error, match=rf"^{op}: .*{re.escape(message)}"):
        attempt(ctx, op, operands)


@pytest.mark.parametrize(("operands", "keywords", "error", "message"), ATTENTION)
def test_attention_refuses_operands_that_do_not_fit(ctx, operands, keywords, error, message):
    op = "scaled_dot_product_attention"
    with pytest.raises(error, match=rf"^{op}: .*{re.escape(message)}"):
        attempt(ctx, op, operands, keywords | {"scale": 1.0})


@pytest.mark.parametrize("dtype", [I32, I64, Q8_0], ids=str)
@pytest.mark.parametrize(("op", "others"), [*[(op, []) for op in FLOAT_ONLY], *FLOAT_FIRST])
def test_ops_that_compute_take_floats_only(ctx, op, others, dtype):
    if others and others[0] is F32:
        others = [t(*others[:2]), *others[2:]]
    message = rf"^{op}: {dtype}\[32\].*the receiver must be f32, f16 or bf16, got {dtype}; cast it first"
    with pytest.raises(DTypeError, match=message):
        attempt(ctx, op, [t(dtype, 32), *others])


def test_a_missing_or_unknown_argument_is_a_type_error(ctx):
    x = leaf(ctx, [1.0])
    for wrong in (lambda: x.scale(ctx), lambda: x.scale(ctx, 1.0, 2.0), lambda: x.neg(ctx, eps=1.0)):
        with pytest.raises(TypeError, match=r"argument|positional"):
            wrong()


def test_ids_are_checked_whenever_they_are_written(ctx):
    table, ids = leaf(ctx, [[1.0, 2.0]]), ctx.from_ints([0, 1])
    y = table.rows(ctx, ids)
    for wrong in ([0, 2], [-1, 0]):
        with pytest.raises(ShapeError, match=r"ids i32\[2\] must be in \[0, 2\), got (2|-1)"):
            ids.from_ints(wrong)
    ctx.compute(y)
    assert y.numpy().tolist() == [[1.0], [2.0]]
    with pytest.raises(ShapeError, match=r"must be in \[0, 1\), got 1"):
        table.slice(ctx, 1, 0, 1).rows(ctx, ids)


def test_positions_of_top_k_must_fit_the_table_that_they_index(ctx):
    best = ctx.zeros(F32, 5).top_k(ctx, 1)
    with pytest.raises(DTypeError, match="ids of top_k reach 4, but must stay below 4"):
        ctx.zeros(F32, 2, 4).rows(ctx, best)


def test_a_leaf_is_either_ids_or_written_by_a_graph(ctx):
    ids, table = ctx.from_ints([0]), ctx.zeros(F32, 2, 4)
    table.rows(ctx, ids)
    with pytest.raises(DTypeError, match="the destination serves as ids"):
        ctx.from_ints([9]).copy(ctx, ids)
    written = ctx.from_ints([0])
    ctx.from_ints([9]).copy(ctx, written)
    with pytest.raises(DTypeError, match="ids must not come from a leaf that a graph writes into"):
        table.rows(ctx, written)
