"""The root mean square norm in Triton, and its proof.

Without a GPU: TRITON_INTERPRET=1 pytest examples/kernels/triton_rms_norm.py
"""

import torch
import triton
import triton.language as tl

from backbay_conformance import check_kernel


@triton.jit
def norm_rows(x, weight, y, rows, q, r, n, a, b, c, d, w, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    at = x + row // r // q * a + row // r % q * b + row % r * c
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)[None, :]
        part = tl.load(at + i * d, (row < rows) & (i < n), 0.0).to(tl.float32)
        total += tl.sum(part * part, 1)
    root = tl.sqrt(total / n + eps)[:, None]
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)[None, :]
        part = tl.load(at + i * d, (row < rows) & (i < n), 0.0).to(tl.float32) / root
        factor = tl.load(weight + i * w, i < n, 0.0).to(tl.float32)
        tl.store(y + row * n + i, part * factor, (row < rows) & (i < n))


def rms_norm(x, weight=None, eps=1e-5):
    x, y = x[(None,) * (4 - x.dim())], torch.empty_like(x, memory_format=torch.contiguous_format)
    weight, (_, q, r, n) = x.new_ones(x.shape[3]) if weight is None else weight, x.shape
    sizes = x.numel() // n, q, r, n, *x.stride(), *weight.stride()
    norm_rows[(triton.cdiv(sizes[0], 64),)](x, weight, y, *sizes, eps, ROWS=64, BLOCK=64)
    return y


def test_rms_norm():  # in bf16, Triton's interpreter truncates where a GPU rounds
    check_kernel(rms_norm, "rms_norm", native=torch.from_dlpack, dtypes="f32,f16", size="smoke")
