"""The ops on elements, rows and shapes, against the reference."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ops_table
import pytest
from ops_table import EIGHT_BIT, HALF, SINGLE, TABLE, agree

from backbay import OPS, Context, DType, Tensor

CASES: list[Any] = []
case = partial(ops_table.case, CASES)


def twice(c: Context, x: Tensor) -> Tensor:
    return x.add(c, x)


def clamped_and_kept(c: Context, x: Tensor) -> list[Tensor]:
    return [x.clamp(c, 0.1, 0.2), x]


def views(c: Context, x: Tensor) -> list[Tensor]:
    return [x.permute(c, 1, 0), x.slice(c, 1, 3, 5)]


# -- elementwise -----------------------------------------------------------------------------------------

for _name in [
    "neg",
    "sqr",
    "exp",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "silu",
    "gelu",
    "gelu_erf",
    "quick_gelu",
    "softplus",
]:
    _bound = TABLE if _name in ("gelu", "quick_gelu") else SINGLE
    for _dtype in ("f32", "f16", "bf16"):
        _loose = max(_bound, {"f32": 0, "f16": 1e-3, "bf16": 8e-3}[_dtype])
        case(f"{_name} {_dtype}", f"{_dtype}[7,3,2]", lambda c, x, n=_name: getattr(x, n)(c), _loose)
    case(f"{_name} strided", "f32[7,3,2]", lambda c, x, n=_name: getattr(x.permute(c, 2, 0, 1), n)(c), _bound)
for _name in ("relu", "silu", "gelu", "quick_gelu"):
    case(f"{_name} gated", "f32[7,3] f32[7,3,1]", lambda c, x, u, n=_name: getattr(x, n)(c, u), TABLE)
    case(
        f"{_name} gated f16",
        "f16[7,3] f32[3,7]",
        lambda c, x, u, n=_name: getattr(x, n)(c, u.permute(c, 1, 0)),
        TABLE,
    )
case("sqrt", "f32[5]", lambda c, x: x.sqrt(c), d0=np.array([0, 1, 2, 1e-20, 3e30], np.float32))
case("swiglu", "f32[7,3] f32[7,3]", lambda c, x, u: x.swiglu(c, u, 1.702, 0.7))
case("clamp", "f32[7,3,2]", lambda c, x: x.slice(c, 1, 0, 2).clamp(c, -0.5, 0.25))
case("clamp keeps its operand", "f32[7]", lambda c, x: [x.sqr(c).clamp(c, 0.1, 0.2), x.sqr(c)])
case("clamp of an intermediate", "f32[7]", lambda c, x: clamped_and_kept(c, x.sqr(c)))
case("scale", "f16[7,3,2]", lambda c, x: x.permute(c, 1, 0, 2).scale(c, -2.5), 1e-3)
for _dtype in ("f32", "f16", "bf16", "i32", "i64"):
    case(f"fill {_dtype}", f"{_dtype}[5,2]", lambda c, x: x.fill(c, -3.0))
case("fill large i32", "i32[3]", lambda c, x: x.fill(c, 2147483647.0))
case("fill large i64", "i64[3,2,1,2]", lambda c, x: x.fill(c, -(2.0**40) - 1))
for _from in ("f32", "f16", "bf16", "i32", "i64"):
    for _to in ("f32", "f16", "bf16", "i32", "i64"):
        case(
            f"cast {_from} {_to}",
            f"{_from}[6,2]",
            lambda c, x, t=_to: x.permute(c, 1, 0).cast(c, DType[t.upper()]),
            d0=np.array([[0, 1, -1, 77, -300, 3]] * 2, np.int64 if _from[0] == "i" else np.float32),
        )
case("cast f32 to i64 beyond 32 bits", "f32[5]", lambda c, x: x.cast(c, DType.I64),
     d0=np.array([2.0**31, 2.0**32 + 512, -(2.0**33), 3e15, -2.75], np.float32))  # fmt: skip
case("cast i64 to f32 beyond 32 bits", "i64[5]", lambda c, x: x.cast(c, DType.F32),
     d0=np.array([2**31, 2**32 + 5, -(2**33), 3 * 10**15, -7]))  # fmt: skip
for _to in ("q8_0", "q4_0", "q5_1"):
    case(
        f"cast to {_to}", "f32[64,3]", lambda c, x, t=_to: x.cast(c, DType[t.upper()]).cast(c, DType.F32), 0.2
    )
for _from in ("q8_0", "q4_k", "q6_k", "iq4_nl", "mxfp4", "q2_k", "tq2_0"):
    case(f"cast from {_from}", f"{_from}[256,3]", lambda c, x: x.cast(c, DType.F16), 1e-3)

# -- binary ----------------------------------------------------------------------------------------------

for _name in ("add", "sub", "mul", "div"):
    _second = np.linspace(1, 2, 12, dtype=np.float32).reshape(2, 2, 3)
    case(
        f"{_name} repeats", "f32[6,4,2] f32[3,2,2]", lambda c, x, y, n=_name: getattr(x, n)(c, y), d1=_second
    )
    case(
        f"{_name} f16",
        "f16[6,4,2] f32[3,2,2]",
        lambda c, x, y, n=_name: getattr(x, n)(c, y),
        1e-3,
        d1=_second,
    )
    case(f"{_name} strided", "f32[4,6,2] f32[2,3,2]",
         lambda c, x, y, n=_name: getattr(x.permute(c, 1, 0, 2), n)(c, y.permute(c, 1, 0, 2)), d1=_second.reshape(2, 3, 2))  # fmt: skip
case("add overlapping rows", "f32[20]", lambda c, x: twice(c, x.view(c, 4, (6, 4), (8,))))
case("add a row seen often", "f32[20]", lambda c, x: twice(c, x.view(c, 4, (6, 4), (0,))))

# -- matrix ----------------------------------------------------------------------------------------------

for _w in ("f32", "f16", "bf16"):
    for _x in ("f32", "f16", "bf16"):
        case(f"mulmat {_w} {_x}", f"{_w}[32,5,2] {_x}[32,4,4,3]", lambda c, w, x: w.mulmat(c, x), 8e-3)
for _w in (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "tq1_0",
    "tq2_0",
):
    case(f"mulmat {_w}", f"{_w}[256,5] f32[256,3]", lambda c, w, x: w.mulmat(c, x), EIGHT_BIT)
    case(f"rows {_w}", f"{_w}[256,5] i32[4]", lambda c, w, i: w.rows(c, i), 1e-6)
case(
    "mulmat permuted",
    "f32[5,8,3] f32[4,8,3]",
    lambda c, w, x: w.permute(c, 1, 0, 2).mulmat(c, x.permute(c, 1, 0, 2)),
)
case(
    "mulmat attention shape",
    "f16[8,2,9] f32[8,4,3]",
    lambda c, k, q: k.permute(c, 0, 2, 1).mulmat_full_prec(c, q.permute(c, 0, 2, 1)),
    HALF,
)
case("mulmat of nothing", "f32[0,5] f32[0,3]", lambda c, w, x: w.mulmat(c, x))
case("mulmat one seen row", "f32[16] f32[4,3]", lambda c, w, x: w.view(c, 0, (4, 6), (0,)).mulmat(c, x))
for _m in (1, 2):
    case(f"mulmat_id {_m}", f"f32[8,5,3] f32[8,{_m},4] i32[2,4]", lambda c, w, x, i: w.mulmat_id(c, x, i))
    case(
        f"mulmat_id q4_0 {_m}",
        f"q4_0[64,5,3] f32[64,{_m},4] i32[2,4]",
        lambda c, w, x, i: w.mulmat_id(c, x, i),
        EIGHT_BIT,
    )
case(
    "mulmat_id strided ids",
    "f32[8,5,3] f32[8,1,4] i32[3,4]",
    lambda c, w, x, i: w.mulmat_id(c, x, i.slice(c, 0, 1, 3)),
)
case("mulmat_id top_k", "f32[8,5,3] f32[8,1,4] f32[3,4]", lambda c, w, x, g: w.mulmat_id(c, x, g.top_k(c, 2)))
case("add_id", "f32[8,2,4] f32[8,3] i32[2,4]", lambda c, x, t, i: x.add_id(c, t, i))
case("add_id f16", "f16[8,2,4] f16[8,3] i32[2,4]", lambda c, x, t, i: x.add_id(c, t, i), 1e-3)

# -- norm, reduce, order ---------------------------------------------------------------------------------

for _name in (
    "softmax",
    "rms_norm",
    "layer_norm",
    "l2_norm",
    "sum_rows",
    "mean",
    "variance",
    "stddev",
    "cumsum",
):
    case(_name, "f32[33,3,2]", lambda c, x, n=_name: getattr(x, n)(c), 1e-5)
    case(f"{_name} f16", "f16[33,3,2]", lambda c, x, n=_name: getattr(x, n)(c), HALF)
    case(f"{_name} strided", "f32[3,33,2]", lambda c, x, n=_name: getattr(x.permute(c, 1, 2, 0), n)(c), 1e-5)
case("rms_norm weighted", "f32[33,3] f16[33]", lambda c, x, w: x.rms_norm(c, w, eps=1e-6))
case("layer_norm weighted", "f32[33,3] f32[33] f32[33]", lambda c, x, w, b: x.layer_norm(c, w, b, eps=1e-6))
case("layer_norm biased", "f32[33,3] f32[33]", lambda c, x, b: x.layer_norm(c, None, b))
case(
    "softmax masked rows",
    "f32[4,2]",
    lambda c, x: x.softmax(c),
    d0=np.array([[-np.inf] * 4, [-np.inf, 0, 1, -np.inf]], np.float32),
)
for _name in ("sum_rows", "mean", "variance"):
    case(f"{_name} of nothing", "f32[0,3]", lambda c, x, n=_name: getattr(x, n)(c))
_distinct = np.random.default_rng(3).permutation(66).reshape(2, 33).astype(np.float32)
case("argsort", "f32[33,2]", lambda c, x: x.argsort(c), d0=_distinct)
case("argsort bf16", "bf16[33,2]", lambda c, x: x.argsort(c), d0=_distinct)
case("top_k", "f32[33,2]", lambda c, x: x.top_k(c, 7), d0=_distinct)
case("top_k strided", "f32[2,33]", lambda c, x: x.permute(c, 1, 0).top_k(c, 33), d0=_distinct.T.copy())
case(
    "top_k of infinities",
    "f32[5]",
    lambda c, x: x.top_k(c, 5),
    d0=np.array([-np.inf, 1, np.inf, -1, 0], np.float32),
)

# -- shape -----------------------------------------------------------------------------------------------

for _dtype in ("f32", "f16", "bf16", "i32", "i64"):
    case(f"contiguous {_dtype}", f"{_dtype}[4,3,2]", lambda c, x: x.permute(c, 2, 1, 0).contiguous(c, 6, 4))
    case(f"concat {_dtype}", f"{_dtype}[4,3,2] {_dtype}[4,5,2]", lambda c, x, y: x.concat(c, y, 1))
    case(
        f"concat strided {_dtype}",
        f"{_dtype}[4,3] {_dtype}[3,5]",
        lambda c, x, y: x.permute(c, 1, 0).concat(c, y, 1),
    )
    case(f"repeat {_dtype}", f"{_dtype}[4,3,2,2]", lambda c, x: x.repeat(c, 1, 3))
    case(f"repeat_4d {_dtype}", f"{_dtype}[1,3,2]", lambda c, x: x.repeat_4d(c, 4, 6, 2, 2))
    case(
        f"stack chunk {_dtype}",
        f"{_dtype}[4,6]",
        lambda c, x: x.chunk(c, 1, 2)[0].stack(c, 0, *x.chunk(c, 1, 2)[1:]),
    )
case("chunk_sections", "f32[9,2]", lambda c, x: [part.sqr(c) for part in x.chunk_sections(c, 0, 2, 0, 7)])
case("duplicate view", "f32[4,6]", lambda c, x: x.slice(c, 0, 1, 4, 2).duplicate(c))
case(
    "contiguous q8_0",
    "q8_0[64,3,2]",
    lambda c, x: x.permute(c, 0, 2, 1).contiguous(c, 32, 12).cast(c, DType.F32),
)
case("concat q8_0 0", "q8_0[64,3] q8_0[32,3]", lambda c, x, y: x.concat(c, y, 0).cast(c, DType.F32))
case("concat mxfp4 1", "mxfp4[64,3] mxfp4[64,2]", lambda c, x, y: x.concat(c, y, 1).cast(c, DType.F32))
case("concat with nothing", "f32[4,0] f32[4,2]", lambda c, x, y: x.concat(c, y, 1))
case("pad", "f32[4,3]", lambda c, x: x.pad(c, 2, 0, 1))
case("pad_ext", "f16[4,3]", lambda c, x: x.permute(c, 1, 0).pad_ext(c, 1, 2, 0, 1, 2, 0, 0, 1))
case("pad_ext of nothing", "f32[0,3]", lambda c, x: x.pad_ext(c, 1, 2))
case("reshape view slice", "f32[4,6]", lambda c, x: x.reshape(c, 3, 8).slice(c, 1, 2, 7, 2).sqr(c))
case(
    "outputs are views",
    "f32[4,6]",
    lambda c, x: [*views(c, x.sqr(c)), x.permute(c, 1, 0)],
)
case("a scalar", "f32[]", lambda c, x: x.sqr(c).add(c, x))

# -- write, index ----------------------------------------------------------------------------------------

case("copy into a view", "f32[4,6] f32[4,2]", lambda c, x, y: [y.copy(c, x.slice(c, 1, 3, 5)), x])
case(
    "copy f16",
    "f16[4,6] f32[2,4]",
    lambda c, x, y: [y.permute(c, 1, 0).copy(c, x.slice(c, 1, 3, 5)), x],
    1e-3,
)
case("copy another shape", "f32[4,6] f16[3,8]", lambda c, x, y: y.copy(c, x.permute(c, 1, 0)), 1e-3)
case(
    "copy q8_0",
    "q8_0[64,6] f32[64,2]",
    lambda c, x, y: [y.copy(c, x.slice(c, 1, 3, 5)).cast(c, DType.F32)],
    2e-2,
)
case(
    "copy q8_0 strided",
    "q8_0[64,3,4] f32[64,3,2]",
    lambda c, x, y: [
        y.copy(c, x.permute(c, 0, 2, 1).slice(c, 1, 1, 4).slice(c, 2, 0, 2).slice(c, 1, 0, 3)).cast(
            c, DType.F32
        )
    ],
    2e-2,
)
case("copy from q8_0", "f32[64,6] q8_0[64,2]", lambda c, x, y: y.copy(c, x.slice(c, 1, 3, 5)))
case("copy i64", "i64[4,3] i32[4,3]", lambda c, x, y: y.copy(c, x))
case("copy overlapping", "f32[12]", lambda c, x: [x.slice(c, 0, 0, 8).copy(c, x.slice(c, 0, 4, 12)), x])
case("read between writes", "f32[4] f32[4]", lambda c, x, y: [x.sqr(c), y.copy(c, x).add(c, x), x])
case("set", "f32[4,6] f32[2,2]", lambda c, x, y: [x.set(c, y, 16, 32), x])
case("set f16", "f16[4,6] f32[2,2]", lambda c, x, y: x.set(c, y, 8).cast(c, DType.F32), 1e-3)
for _ids in ("i32", "i64"):
    for _dtype in ("f32", "f16", "bf16", "i32", "i64"):
        case(f"set_rows {_dtype} {_ids}", f"{_dtype}[4,6,2] f32[4,3,2] {_ids}[3,2]",
             lambda c, x, s, i: [x.set_rows(c, s, i), x], 8e-3, d2=np.array([[1, 5, 0], [2, 3, 4]]))  # fmt: skip
case(
    "set_rows i64 rows",
    "i64[4,6] i64[4,3] i32[3]",
    lambda c, x, s, i: x.set_rows(c, s, i),
    d1=np.arange(12).reshape(3, 4) * 2**35,
    d2=np.array([4, 0, 5]),
)
case(
    "set_rows q8_0",
    "q8_0[64,6] f32[64,3] i32[3]",
    lambda c, x, s, i: x.set_rows(c, s, i).rows(c, i),
    2e-2,
    d2=np.array([4, 0, 5]),
)
case(
    "set_rows of itself",
    "f32[4,6] i32[3]",
    lambda c, x, i: [x.set_rows(c, x.slice(c, 1, 0, 3), i), x],
    d1=np.array([2, 3, 0]),
)
case(
    "set_rows strided",
    "f32[4,6,2] f32[3,4] i32[3]",
    lambda c, x, s, i: [x.slice(c, 2, 1, 2).set_rows(c, s.permute(c, 1, 0), i), x],
    d2=np.array([4, 0, 5]),
)
for _dtype in ("f32", "f16", "bf16", "i32"):
    case(f"rows {_dtype}", f"{_dtype}[4,3,2] i32[5,2]", lambda c, x, i: x.rows(c, i))
case("rows of one slice", "f32[4,3] i32[5,2,3]", lambda c, x, i: x.rows(c, i))
case("rows of one slice in dimension 2", "f32[4,3,1,3] i32[5,2,3]", lambda c, x, i: x.rows(c, i))
case("rows of one slice in dimension 3", "f32[4,3,2] i32[5,2,3]", lambda c, x, i: x.rows(c, i))
case(
    "rows strided",
    "f32[3,4] i32[2,5]",
    lambda c, x, i: x.permute(c, 1, 0).rows(c, i.permute(c, 1, 0).slice(c, 1, 0, 1)),
)


@pytest.mark.parametrize(("specs", "trace", "tolerance", "data"), CASES)
def test_ggml_agrees_with_the_reference(ggml, reference, specs, trace, tolerance, data) -> None:
    agree(ggml, reference, specs, trace, tolerance, data)


def test_every_op_has_a_case_or_is_a_view() -> None:
    tables = " ".join(path.read_text() for path in Path(__file__).parent.glob("test_ops*.py"))
    missing = [name for name, op in OPS.items() if not op.view and name not in tables]
    assert missing == []
