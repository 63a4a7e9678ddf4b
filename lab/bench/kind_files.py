"""Writes models of several kinds, with random weights and one width, as GGUF files that llama.cpp opens too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from llama_file import EPS, SPECIALS, write_vocabulary
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]  # dimension 0 is the innermost
HEAD, STATE, TAPS, RANK = 64, 64, 4, 64
EXPERTS, USED = 16, 4
OUTPUTS = "attn_output.weight", "ssm_out.weight", "ffn_down.weight"


@dataclass(frozen=True)
class Sizes:
    """What the models of a comparison share."""

    width: int = 512
    hidden: int = 1536
    layers: int = 8
    vocab: int = 8192

    @property
    def heads(self) -> int:
        return self.width // HEAD


def write_kind(path: Path, kind: str, sizes: Sizes, dtype: str, *, right: bool | None = None) -> None:
    """Write a model whose activations stay near 1.

    If `right` is not None, no block changes anything, and one more is a head that predicts the token after the next one: always
    right, or never.
    """
    writer, rng = gguf.GGUFWriter(path, kind), np.random.default_rng(0)
    head = sizes.layers
    if right is not None:
        sizes = replace(sizes, layers=head + 1)
        writer.add_uint32(f"{kind}.nextn_predict_layers", 1)
    common = {
        "block_count": sizes.layers,
        "context_length": 4096,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.hidden,
        "vocab_size": sizes.vocab,
        "attention.layer_norm_rms_epsilon": EPS,
    }
    for key, value in {**common, **METADATA[kind](sizes)}.items():
        unsigned = (
            gguf.GGUFValueType.UINT32 if isinstance(value, int) else None
        )  # llama.cpp refuses signed ones
        writer.add_key_value(f"{kind}.{key}", value, unsigned or gguf.GGUFValueType.get_type(value))
    write_vocabulary(writer, sizes.vocab)
    quantized = gguf.GGMLQuantizationType[dtype.upper()]

    def add(name: str, *shape: int) -> None:
        numbers = rng.standard_normal(shape[::-1], np.float32) / np.float32(shape[0] ** 0.5)
        if name.endswith(".nextn.eh_proj.weight") and right:
            numbers = np.eye(*shape[::-1], dtype=np.float32)
        if right is not None and name.endswith(OUTPUTS):
            numbers[:] = 0
        if name == "output.weight":
            numbers[: len(SPECIALS)] = 0  # greedy choice never ends a text
        if "ffn_gate_inp" in name:
            writer.add_tensor(name, numbers)
        elif "_exps" in name or is_matrix(name, shape):
            writer.add_tensor(name, gguf.quants.quantize(numbers, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, _small(name, shape[::-1], rng))

    add("token_embd.weight", sizes.width, sizes.vocab)
    add("output_norm.weight", sizes.width)
    add("output.weight", sizes.width, sizes.vocab)
    for name, *shape in TENSORS[kind](sizes):
        add(name, *shape)
    if right is not None:
        add(f"blk.{head}.nextn.eh_proj.weight", 2 * sizes.width, sizes.width)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            add(f"blk.{head}.nextn.{norm}.weight", sizes.width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def is_matrix(name: str, shape: Shape) -> bool:
    return len(shape) == 2 and "conv1d" not in name and min(shape) > 1 and "ssm_norm" not in name


def _small(name: str, shape: Shape, rng: np.random.Generator) -> NDArray[np.float32]:
    """Vectors and kernels: norms are 1, biases 0, decays between -2 and 0."""
    if name.endswith("ssm_a"):
        return -rng.random(shape, np.float32) * 2
    if "conv1d.weight" in name or "lerp" in name:
        return rng.random(shape, np.float32) / 2
    zero = name.endswith(".bias") or ("time_mix_" in name and name.endswith("0.weight"))
    return np.full(shape, 0.0 if zero else 1.0, np.float32)


# -- kinds -------------------------------------------------------------------------------------------------


def blocks(sizes: Sizes, norms: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Norms of each block; gives the block's prefix with them."""
    for layer in range(sizes.layers):
        yield from ((f"blk.{layer}.{norm}.weight", sizes.width) for norm in norms)


def gated(sizes: Sizes, layer: int) -> Iterator[tuple[str, int, int]]:
    yield f"blk.{layer}.ffn_gate.weight", sizes.width, sizes.hidden
    yield f"blk.{layer}.ffn_up.weight", sizes.width, sizes.hidden
    yield f"blk.{layer}.ffn_down.weight", sizes.hidden, sizes.width


def llama(sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    yield from blocks(sizes, ("attn_norm", "ffn_norm"))
    for layer in range(sizes.layers):
        for name in ("q", "k", "v", "output"):
            yield f"blk.{layer}.attn_{name}.weight", sizes.width, sizes.width
        yield from gated(sizes, layer)


def qwen3moe(sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    """Each token meets as many weights as in `llama`."""
    yield from blocks(sizes, ("attn_norm", "ffn_norm"))
    hidden = sizes.hidden // USED
    for layer in range(sizes.layers):
        here = f"blk.{layer}."
        for name in ("q", "k", "v", "output"):
            yield f"{here}attn_{name}.weight", sizes.width, sizes.width
        yield f"{here}attn_q_norm.weight", HEAD
        yield f"{here}attn_k_norm.weight", HEAD
        yield f"{here}ffn_gate_inp.weight", sizes.width, EXPERTS
        for name in ("gate", "up"):
            yield f"{here}ffn_{name}_exps.weight", sizes.width, hidden, EXPERTS
        yield f"{here}ffn_down_exps.weight", hidden, sizes.width, EXPERTS


def mamba2(sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    yield from blocks(sizes, ("attn_norm",))
    inner = 2 * sizes.width
    channels, heads = inner + 2 * STATE, inner // HEAD
    for layer in range(sizes.layers):
        here = f"blk.{layer}.ssm_"
        yield f"{here}in.weight", sizes.width, inner + channels + heads
        yield f"{here}conv1d.weight", TAPS, channels
        yield f"{here}conv1d.bias", channels
        yield f"{here}dt.bias", heads
        yield f"{here}a", 1, heads
        yield f"{here}d", 1, heads
        yield f"{here}norm.weight", inner, 1
        yield f"{here}out.weight", inner, sizes.width


def qwen35(sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    yield from blocks(sizes, ("attn_norm", "post_attention_norm"))
    width = sizes.width
    for layer in range(sizes.layers):
        here = f"blk.{layer}."
        if layer % 4 == 3:
            for name, outputs in (("q", 2 * width), ("k", width), ("v", width), ("output", width)):
                yield f"{here}attn_{name}.weight", width, outputs
            yield f"{here}attn_q_norm.weight", HEAD
            yield f"{here}attn_k_norm.weight", HEAD
        else:
            yield f"{here}attn_qkv.weight", width, 3 * width
            yield f"{here}attn_gate.weight", width, width
            yield f"{here}ssm_conv1d.weight", TAPS, 3 * width
            yield f"{here}ssm_dt.bias", sizes.heads
            yield f"{here}ssm_a", sizes.heads
            yield f"{here}ssm_alpha.weight", width, sizes.heads
            yield f"{here}ssm_beta.weight", width, sizes.heads
            yield f"{here}ssm_norm.weight", HEAD
            yield f"{here}ssm_out.weight", width, width
        yield from gated(sizes, layer)


def rwkv7(sizes: Sizes) -> Iterator[tuple[Any, ...]]:
    width = sizes.width
    yield "token_embd_norm.weight", width
    yield "token_embd_norm.bias", width
    yield "output_norm.bias", width
    for layer in range(sizes.layers):
        here = f"blk.{layer}."
        for norm in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            yield f"{here}{norm}.weight", width
            yield f"{here}{norm}.bias", width
        yield f"{here}time_mix_lerp_fused.weight", width, 1, 1, 6
        yield f"{here}channel_mix_lerp_k.weight", width, 1, 1
        for letter in "wavg":
            yield f"{here}time_mix_{letter}1.weight", width, RANK
            yield f"{here}time_mix_{letter}2.weight", RANK, width
            if letter != "g":
                yield f"{here}time_mix_{letter}0.weight", width
        for name in ("k_k", "k_a", "r_k"):
            yield f"{here}time_mix_{name}.weight", width
        for name in ("receptance", "key", "value", "output"):
            yield f"{here}time_mix_{name}.weight", width, width
        yield f"{here}channel_mix_key.weight", width, 2 * sizes.hidden
        yield f"{here}channel_mix_value.weight", 2 * sizes.hidden, width


def attention(sizes: Sizes) -> dict[str, Any]:
    return {
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.heads,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD,
    }


def states(inner: int, heads: int, groups: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": TAPS,
        "ssm.inner_size": inner,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }


METADATA: dict[str, Any] = {
    "llama": attention,
    "qwen3moe": lambda sizes: {
        **attention(sizes),
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "expert_feed_forward_length": sizes.hidden // USED,
    },
    "mamba2": lambda sizes: {
        **states(2 * sizes.width, 2 * sizes.heads, 1),
        "attention.head_count": 0,
        "feed_forward_length": 0,
    },
    "qwen35": lambda sizes: {
        **attention(sizes),
        **states(sizes.width, sizes.heads, sizes.heads),
        "full_attention_interval": 4,
        "rope.dimension_sections": [HEAD // 2, 0, 0, 0],
    },
    "rwkv7": lambda sizes: {
        "wkv.head_size": HEAD,
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": EPS,
        "feed_forward_length": 2 * sizes.hidden,
        **{f"attention.{name}_lora_rank": RANK for name in ("decay", "iclr", "value_residual_mix", "gate")},
    },
}
TENSORS = {"llama": llama, "qwen3moe": qwen3moe, "mamba2": mamba2, "qwen35": qwen35, "rwkv7": rwkv7}
