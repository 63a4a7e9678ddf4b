"""The root mean square norm in Triton, and its proof: without a GPU, run it with TRITON_INTERPRET=1."""

import torch
import triton
import triton.language as tl

from backbay_conformance import check_kernel


@triton.jit
def norm_row(x, weight, y, n, eps, a, b, c, d, w, BLOCK: tl.constexpr):
    p, q, r = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, out = x + p * a + q * b + r * c, y + ((p * tl.num_programs(1) + q) * tl.num_programs(2) + r) * n
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(row + i * d, i < n, 0.0).to(tl.float32)
        total += part * part
    root = tl.sqrt(tl.sum(total) / n + eps)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(row + i * d, i < n, 0.0).to(tl.float32) / root
        tl.store(out + i, part * tl.load(weight + i * w, i < n, 0.0).to(tl.float32), i < n)


def rms_norm(x, weight=None, eps=1e-5):
    x, weight = x[(None,) * (4 - x.dim())], x.new_ones(x.shape[-1]) if weight is None else weight
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    norm_row[x.shape[:3]](x, weight, y, x.shape[-1], eps, *x.stride(), *weight.stride(), BLOCK=256)
    return y


def prove(**settings):
    # Not bf16, which Triton's interpreter truncates, where a GPU rounds.
    check_kernel(rms_norm, "rms_norm", native=torch.from_dlpack, dtypes="f32,f16", **settings)


if __name__ == "__main__":
    prove(size="smoke")
