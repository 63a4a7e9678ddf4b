"""A small model with caches, whose layers may lie on any device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

from backbay import Backend, Context, DType, Tensor

LAYERS, WIDTH, HEAD, HEADS, KV_HEADS, HIDDEN, VOCAB, CELLS = 4, 128, 32, 4, 2, 256, 96, 32


def write_model(path: Path, *, tied: bool = False, kind: str = "Q8_0", seed: int = 3) -> Path:
    rng = np.random.default_rng(seed)
    tensors = []

    def matrix(name: str, rows: int, columns: int) -> None:
        numbers = (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)
        dtype = GGMLQuantizationType[kind]
        tensors.append((name, quants.quantize(numbers, dtype), dtype))

    def vector(name: str) -> None:
        numbers = (1 + rng.standard_normal(WIDTH) / 10).astype(np.float32)
        tensors.append((name, numbers, GGMLQuantizationType.F32))

    matrix("token_embd.weight", VOCAB, WIDTH)
    for n in range(LAYERS):
        vector(f"blk.{n}.attn_norm.weight")
        for part, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            matrix(f"blk.{n}.attn_{part}.weight", rows, WIDTH)
        matrix(f"blk.{n}.attn_output.weight", WIDTH, HEADS * HEAD)
        matrix(f"blk.{n}.ffn_up.weight", HIDDEN, WIDTH)
        matrix(f"blk.{n}.ffn_down.weight", WIDTH, HIDDEN)
    vector("output_norm.weight")
    if not tied:
        matrix("output.weight", VOCAB, WIDTH)
    return write_gguf(path, LAYERS, tensors, embedding_length=WIDTH, **{"attention.head_count": HEADS})


class Model:
    """The caches of a model, and the graphs of its steps."""

    def __init__(self, backend: Backend, dtype: DType = DType.F16) -> None:
        self.backend, self.store = backend, backend.new_context()
        self.caches = [
            tuple(self.store.layer(n).zeros(dtype, HEAD * KV_HEADS, CELLS) for _ in "kv")
            for n in range(LAYERS)
        ]

    def weight(self, name: str) -> Tensor:
        found = self.backend.get(f"{name}.weight") or self.backend.get("token_embd.weight")
        assert found is not None
        return found

    def logits(self, ctx: Context, tokens: list[int], first: int) -> Tensor:
        """The logits of tokens at the positions from `first` on."""
        host, count = ctx.input(), len(tokens)
        places = host.from_ints(range(first, first + count))
        seen = np.arange(CELLS)[None, :] <= np.arange(first, first + count)[:, None]
        mask = host.from_floats(np.where(seen, 0, -np.inf)).cast(ctx, DType.F16)
        self.tokens = host.from_ints(tokens)
        x = self.weight("token_embd").rows(ctx, self.tokens)
        for n in range(LAYERS):
            h = x.rms_norm(ctx, self.weight(f"blk.{n}.attn_norm"), 1e-5)
            x = x.add(ctx, self.attention(ctx, n, h, places, mask))
            up = self.weight(f"blk.{n}.ffn_up").mulmat(ctx, x.rms_norm(ctx, eps=1e-5)).silu(ctx)
            x = x.add(ctx, self.weight(f"blk.{n}.ffn_down").mulmat(ctx, up))
        x = x.rms_norm(ctx, self.weight("output_norm"), 1e-5)
        return self.weight("output").mulmat(ctx, x)

    def attention(self, ctx: Context, n: int, h: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        count = h.dim(1)
        q, k, v = (self.weight(f"blk.{n}.attn_{part}").mulmat(ctx, h) for part in "qkv")
        q = q.reshape(ctx, HEAD, HEADS, count).rope(ctx, places, HEAD, 1e4, 1.0, "neox")
        k = k.reshape(ctx, HEAD, KV_HEADS, count).rope(ctx, places, HEAD, 1e4, 1.0, "neox")
        flat = k.reshape(ctx, HEAD * KV_HEADS, count)
        keys, values = (
            cache.set_rows(ctx, new, places).reshape(ctx, HEAD, KV_HEADS, CELLS)
            for cache, new in zip(self.caches[n], (flat, v), strict=True)
        )
        y = q.scaled_dot_product_attention(ctx, keys, values, mask, scale=HEAD**-0.5)
        return self.weight(f"blk.{n}.attn_output").mulmat(ctx, y.reshape(ctx, HEAD * HEADS, count))


def generate(backend: Backend, dtype: DType = DType.F16) -> list[np.ndarray]:
    """The logits of a prompt and of three steps."""
    model = Model(backend, dtype)
    found = []
    with model.store:
        for tokens, first in (([5, 1, 90, 7, 7], 0), ([3], 5), ([44], 6), ([8], 7)):
            with backend.new_context() as ctx:
                y = model.logits(ctx, tokens, first)
                ctx.compute(y)
                found.append(y.numpy())
    return found
