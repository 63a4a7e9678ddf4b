"""The ops that models of images, sequences and language are made of, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import ops_table
import pytest
from ops_table import EIGHT_BIT, HALF, agree

from backbay import Backend, BackendParams, FlashAttention
from backbay_ggml import Ggml

CASES: list[Any] = []
case = partial(ops_table.case, CASES)


# -- spatial ---------------------------------------------------------------------------------------------

case("conv2d", "f32[3,2,4,5] f32[9,8,4,2]", lambda c, w, x: w.conv2d(c, x, 2, 1, 1, 2, 1, 2))
case("conv2d f16", "f16[3,3,4,5] f16[9,8,4,2]", lambda c, w, x: w.conv2d(c, x), 1e-4)
case("conv2d no channels", "f32[3,3,0,5] f32[9,8,0,2]", lambda c, w, x: w.conv2d(c, x))
case("conv2d all padding", "f32[3,3,2,5] f32[0,8,2,2]", lambda c, w, x: w.conv2d(c, x, 1, 1, 2, 1))
case("im2col", "f32[3,2,4,5] bf16[9,8,4,2]", lambda c, w, x: w.im2col(c, x, 2, 1, 1, 2, 1, 2))
case("conv3d", "f32[3,2,2,6] f32[7,6,5,4]", lambda c, w, x: w.conv3d(c, x, 2, 1, 2, 1, 1, 0, 1))
case("conv1d_dw", "f32[11,4,2] f16[3,1,4]", lambda c, x, w: x.conv1d_dw(c, w, 2, 1, 2), 1e-4)
case("avg_pool2d", "f32[9,8,3,2]", lambda c, x: x.avg_pool2d(c, 3, 2, 1.0))
case("avg_pool2d half", "f16[9,8,3]", lambda c, x: x.avg_pool2d(c, 2, 2, 1.5), 1e-3)
case("interpolate nearest", "f32[5,7,2,3]", lambda c, x: x.interpolate(c, (13, 3, 4, 2)))
case("interpolate bilinear", "f32[5,7,2]", lambda c, x: x.interpolate(c, (13, 3, 4), "bilinear"))
case(
    "interpolate bilinear shrinks",
    "f16[15,17]",
    lambda c, x: x.permute(c, 1, 0).interpolate(c, (5, 9), "bilinear"),
    1e-3,
)

# -- sequence, linear algebra ----------------------------------------------------------------------------

for _mode in ("normal", "neox"):
    case(
        f"rope {_mode}",
        "f32[16,3,5,2] i32[5]",
        lambda c, x, p, m=_mode: x.rope(c, p, 12, 1e4, 0.5, m),
        1e-4,
        d1=np.array([0, 7, 33, 2, 900]),
    )
    case(
        f"rope {_mode} factors",
        "f16[16,3,5] i32[5] f32[6]",
        lambda c, x, p, f, m=_mode: x.rope(c, p, 12, 1e4, 1.0, m, f),
        2e-3,
        d2=np.linspace(1, 3, 6, dtype=np.float32),
    )
    case(
        f"rope {_mode} yarn",
        "f32[16,3,5] i32[5]",
        lambda c, x, p, m=_mode: x.rope(
            c, p, 16, 1e4, 0.25, m, None, (0, 0, 0, 0), (2048, 1.0, 1.1, 32.0, 1.0)
        ),
        1e-4,
    )
case("rope strided", "f32[3,16,5] i32[5]", lambda c, x, p: x.permute(c, 1, 0, 2).rope(c, p, 16, 1e4))
case(
    "rope multi-section",
    "f32[16,3,5] i32[20]",
    lambda c, x, p: x.rope(c, p, 16, 1e4, 1.0, "multi-section", None, (2, 3, 3, 0)),
    1e-4,
    d1=np.arange(20) * 3,
)
case(
    "rope vision",
    "f32[16,3,5] i32[20]",
    lambda c, x, p: x.rope(c, p, 8, 1e4, 1.0, "vision", None, (4, 4, 0, 0)),
    1e-4,
    d1=np.arange(20) * 3,
)
case("ssm_conv", "f32[10,6,2] f16[4,6]", lambda c, x, w: x.ssm_conv(c, w), 1e-4)
for _a in (1, 8):
    case(f"ssm_scan {_a}", f"f32[8,4,6,3] f32[4,6,5,2] f32[6,5,2] f32[{_a},6] f32[8,2,5,2] f32[8,2,5,2] i32[2]",
         lambda c, *t: t[0].ssm_scan(c, *t[1:]), 1e-4)  # fmt: skip
case(
    "ssm_scan no tokens",
    "f32[8,4,6,3] f32[4,6,0,2] f32[6,0,2] f32[1,6] f32[8,2,0,2] f32[8,2,0,2] i32[2]",
    lambda c, *t: t[0].ssm_scan(c, *t[1:]),
)
case("diag", "f16[5,1,2]", lambda c, x: x.diag(c))
for _kind in ("upper-diag", "upper", "lower-diag", "lower"):
    case(f"tri {_kind}", "f32[5,5,2]", lambda c, x, k=_kind: x.tri(c, k))
for _lower in (True, False):
    for _left in (True, False):
        for _unit in (True, False):
            case(f"solve_tri {_lower} {_left} {_unit}", f"f32[4,4,2] f32[{'3,4' if _left else '4,3'},2]",
                 lambda c, a, b, o=(_lower, _left, _unit): a.solve_tri(c, b, *o), 1e-4,
                 d0=np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32) + 3 * np.eye(4, dtype=np.float32))  # fmt: skip

# -- attention -------------------------------------------------------------------------------------------

_mask = np.where(np.tri(6, 9, 3, dtype=bool), 0, -np.inf).astype(np.float32)
for _kv in ("f32", "f16", "q8_0"):
    _n = 32
    case(f"attention {_kv}", f"f32[{_n},4,6] {_kv}[{_n},2,9] {_kv}[{_n},2,9]",
         lambda c, q, k, v: q.scaled_dot_product_attention(c, k, v, scale=0.2), EIGHT_BIT if _kv == "q8_0" else HALF)  # fmt: skip
    for _m in ("f16", "f32"):
        case(f"attention {_kv} mask {_m}", f"f32[{_n},4,6] {_kv}[{_n},2,9] {_kv}[{_n},2,9] {_m}[9,6]",
             lambda c, q, k, v, m: q.scaled_dot_product_attention(c, k, v, m, scale=0.2), EIGHT_BIT if _kv == "q8_0" else HALF, d3=_mask)  # fmt: skip
        case(f"attention {_kv} sinks softcap vmla {_m}", f"f32[{_n},4,6] {_kv}[{_n},2,9] {_kv}[{_n},2,9] {_m}[9,6] f32[4] f32[{_n},5,4]",
             lambda c, q, k, v, m, s, w: q.scaled_dot_product_attention(c, k, v, m, scale=0.2, sinks=s, vmla=w, softcap=1.5),
             EIGHT_BIT if _kv == "q8_0" else HALF, d3=_mask)  # fmt: skip
case("attention padded mask by head and batch", "f32[8,4,6,2] f16[8,2,9,2] f16[8,2,9,2] f16[9,8,4,2]",
     lambda c, q, k, v, m: q.scaled_dot_product_attention(c, k, v, m, scale=0.2), HALF)  # fmt: skip
case("attention permuted value", "f32[8,4,6] f16[8,2,32] f16[8,2,32] f16[32,6]",
     lambda c, q, k, v, m: q.scaled_dot_product_attention(c, k, v, m, scale=0.2), HALF)  # fmt: skip
case("attention strided cache", "f32[8,4,6] f16[16,2,20] f16[16,2,20]",
     lambda c, q, k, v: q.scaled_dot_product_attention(c, k.slice(c, 0, 0, 8).slice(c, 2, 3, 12), v.slice(c, 0, 8, 16).slice(c, 2, 3, 12), scale=0.2), HALF)  # fmt: skip
case("attention without history", "f32[8,4,6] f32[8,2,0] f32[8,2,0]",
     lambda c, q, k, v: q.scaled_dot_product_attention(c, k, v, scale=0.2))  # fmt: skip


ATTENTION = [each for each in CASES if "attention" in each.id]


@pytest.fixture(scope="module")
def without_flash() -> Iterator[Backend]:
    with Ggml(None, BackendParams(num_threads=2, flash_attention=FlashAttention.OFF)) as backend:
        yield backend


@pytest.mark.parametrize(("specs", "trace", "tolerance", "data"), CASES)
def test_ggml_agrees_with_the_reference_on_parts_of_models(
    ggml, reference, specs, trace, tolerance, data
) -> None:
    agree(ggml, reference, specs, trace, tolerance, data)


@pytest.mark.parametrize(("specs", "trace", "tolerance", "data"), ATTENTION)
def test_attention_without_flash_agrees_too(without_flash, reference, specs, trace, tolerance, data) -> None:
    agree(without_flash, reference, specs, trace, tolerance, data)
