"""A small gated network in a GGUF file, and its forward pass, which runs on any backend."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from backbay import Backend, Context, Tensor

WIDTH, HIDDEN, BLOCKS, WORDS = 128, 256, 4, 96


def write_model(path: Path) -> None:
    """Fixed random weights: norms in f32, matrices in q8_0, the output in f16."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "tiny")
    writer.add_block_count(BLOCKS)
    writer.add_embedding_length(WIDTH)

    def add(name: str, kind: Type, out: int, inner: int) -> None:
        weight = (rng.standard_normal((out, inner)) / np.sqrt(inner)).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)

    add("token_embd.weight", Type.Q8_0, WORDS, WIDTH)
    for block in range(BLOCKS):
        writer.add_tensor(f"blk.{block}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        add(f"blk.{block}.ffn_gate.weight", Type.Q8_0, HIDDEN, WIDTH)
        add(f"blk.{block}.ffn_up.weight", Type.Q8_0, HIDDEN, WIDTH)
        add(f"blk.{block}.ffn_down.weight", Type.Q8_0, WIDTH, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    add("output.weight", Type.F16, WORDS, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def forward(backend: Backend, ctx: Context) -> Tensor:
    """Scores of the next word for each of 24 words, on any backend."""

    def weight(name: str) -> Tensor:
        found = backend.get(f"{name}.weight")
        assert found is not None, name
        return found

    words = ctx.input().from_ints(np.arange(24) * 4 % WORDS)
    x = weight("token_embd").rows(ctx, words)  # (width, words)
    for block in range(backend.config.int("block_count")):
        layer, name = ctx.layer(block), f"blk.{block}.ffn"
        h = x.rms_norm(layer, weight(f"{name}_norm"), eps=1e-5)
        gate = weight(f"{name}_gate").mulmat(layer, h).silu(layer, weight(f"{name}_up").mulmat(layer, h))
        x = x.add(layer, weight(f"{name}_down").mulmat(layer, gate))
    x = x.rms_norm(ctx, weight("output_norm"), eps=1e-5)
    return weight("output").mulmat(ctx, x)
