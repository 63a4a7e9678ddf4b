"""The text side of small models that see: vocabulary, metadata and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
from small_llama import SPECIAL as PLAIN

MARKS = [
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<image>", "<|image|>"),
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    *("<fake_token_around_image>", "<global-img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    *(
        "<|image_start|>",
        "<|image_end|>",
        "<|tile_x_separator|>",
        "<|tile_y_separator|>",
        "<|patch|>",
        "<|audio|>",
    ),
]
SPECIAL = [*PLAIN, *MARKS]
WORDS = 257 + len(SPECIAL)
ID = {word: 257 + n for n, word in enumerate(SPECIAL)}
TEXTS = {
    **dict.fromkeys(("llava", "llava16", "idefics3", "ldp", "ldpv2", "minicpmv"), "llama"),
    "minicpm46": "qwen35",
    "qwen2": "qwen2vl",
}  # architectures, where they are not the kind's name
BLOCKS = {"mllama": 4, "llama4": 4}  # of the text, where there are not three
WIDTH, HEADS, KV_HEADS, HIDDEN = 32, 4, 2, 48
EXPERTS, EXPERT_HIDDEN = 4, 16
CONTEXT = 512

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def write_text_keys(writer: gguf.GGUFWriter, kind: str) -> None:
    writer.add_block_count(BLOCKS.get(kind, 3))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if kind == "gemma3":
        writer.add_sliding_window(8)
        writer.add_array("gemma3.attention.sliding_window_pattern", [True, False, True])
    if kind == "qwen25vl":
        writer.add_array("qwen25vl.rope.mrope_section", [2, 1, 1])
    if TEXTS.get(kind, kind) == "qwen2vl":
        writer.add_array("qwen2vl.rope.dimension_sections", [2, 1, 1, 0])
    if kind == "qwen3vl":
        writer.add_array("qwen3vl.rope.dimension_sections", [3, 0, 1, 0])
    if kind == "qwen35":
        writer.add_array("qwen35.rope.dimension_sections", [2, 1, 1, 0])
    if kind == "llama4":
        writer.add_uint32("llama4.attention.chunk_size", 24)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(EXPERT_HIDDEN)
        writer.add_interleave_moe_layer_step(2)
    if TEXTS.get(kind, kind) == "qwen35":
        write_keys(writer, "qwen35.", RECURRENT)
    if kind == "mllama":
        writer.add_array("mllama.attention.cross_attention_layers", [1, 3])


def write_keys(writer: gguf.GGUFWriter, prefix: str, keys: dict[str, Any]) -> None:
    for name, value in keys.items():
        if isinstance(value, list):
            writer.add_array(prefix + name, value)
        elif isinstance(value, float):
            writer.add_float32(prefix + name, value)
        else:
            writer.add_uint32(prefix + name, value)


def text_tensors(kind: str) -> Shapes:
    head, mixed = WIDTH // HEADS, TEXTS.get(kind, kind) == "qwen35"
    yield "token_embd.weight", (WORDS + 8 * (kind == "mllama"), WIDTH)
    for layer in range(BLOCKS.get(kind, 3)):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (WIDTH,)
        yield block + ("post_attention_norm" if mixed else "ffn_norm") + ".weight", (WIDTH,)
        if kind == "llama4" and layer % 2 == 1:
            yield from _experts(block)
        else:
            for name in ("gate", "up"):
                yield block + f"ffn_{name}.weight", (HIDDEN, WIDTH)
            yield block + "ffn_down.weight", (WIDTH, HIDDEN)
        if mixed and layer != 1:
            yield from ((block + name, shape) for name, shape in DELTA_RULE.items())
            continue
        crosses = kind == "mllama" and layer % 2 == 1
        queries = HEADS * head * (2 if mixed else 1)  # with a gate beside each
        for part, rows in (("q", queries), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            name = f"cross_attn_{part}_proj" if crosses else f"attn_{part}"
            yield block + f"{name}.weight", (rows, WIDTH)
            if kind in ("qwen25vl", "qwen2vl", "qwen2"):
                yield block + f"{name}.bias", (rows,)
        yield block + ("cross_attn_o_proj" if crosses else "attn_output") + ".weight", (WIDTH, WIDTH)
        if crosses:
            yield from ((block + f"cross_attn_{part}_norm.weight", (head,)) for part in "qk")
            yield from ((block + f"cross_attn_{part}_gate", (1,)) for part in ("attn", "mlp"))
        if kind in ("gemma3", "qwen3vl") or mixed:
            yield from ((block + f"attn_{part}_norm.weight", (head,)) for part in "qk")
        if kind == "gemma3":
            yield from ((block + f"post_{part}_norm.weight", (WIDTH,)) for part in ("attention", "ffw"))
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (WORDS, WIDTH)


RECURRENT = {
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": WIDTH,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_CHANNELS = WIDTH + 2 * 2 * 8
DELTA_RULE = {
    "attn_qkv.weight": (_CHANNELS, WIDTH),
    "attn_gate.weight": (WIDTH, WIDTH),
    "ssm_conv1d.weight": (_CHANNELS, 4),
    "ssm_dt.bias": (4,),
    "ssm_a": (4,),
    "ssm_alpha.weight": (4, WIDTH),
    "ssm_beta.weight": (4, WIDTH),
    "ssm_norm.weight": (WIDTH // 4,),
    "ssm_out.weight": (WIDTH, WIDTH),
}


def _experts(block: str) -> Shapes:
    yield block + "ffn_gate_inp.weight", (EXPERTS, WIDTH)
    for name in ("gate", "up"):
        yield block + f"ffn_{name}_exps.weight", (EXPERTS, EXPERT_HIDDEN, WIDTH)
        yield block + f"ffn_{name}_shexp.weight", (EXPERT_HIDDEN, WIDTH)
    yield block + "ffn_down_exps.weight", (EXPERTS, WIDTH, EXPERT_HIDDEN)
    yield block + "ffn_down_shexp.weight", (WIDTH, EXPERT_HIDDEN)
