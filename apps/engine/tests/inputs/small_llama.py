"""A small Llama with random weights and a vocabulary of bytes, for tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

HEADS, KV_HEADS, HIDDEN, LAYERS, CONTEXT = 4, 2, 64, 2, 256
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
MERGED = "\u0100\u0100"  # two zero bytes: a vocabulary needs a merge
BOS, EOS = 257, 258
SUPPRESSED = 7
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
SPELLED = [
    chr(byte if byte in _VISIBLE else 256 + _OTHERS.index(byte)) for byte in range(256)
]  # of each byte
WORDS = 257 + len(SPECIAL)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_small_llama(
    path: Path,
    *,
    layers: int = LAYERS,
    head: int = 8,
    seed: int = 3,
    broken_layer: int | None = None,
    endless: bool = False,
    context: int = CONTEXT,
    key_outlier: tuple[int, float] | None = None,
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """Write the model; the weights of `broken_layer` give NaN. An endless model ends no answer.

    Matrices are stored as `dtype`. `key_outlier` is a feature of each key, and its bias, as Qwen2 has them. The other
    features then are of size 1/2, so that tokens attend to many, else of size 2.
    """
    rng, width = np.random.default_rng(seed), head * HEADS
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer, suppressed=[SUPPRESSED, EOS] if endless else [SUPPRESSED])

    def add(name: str, *shape: int, size: float = 2.0) -> None:
        scale = 1.0 if len(shape) == 1 else size / np.sqrt(shape[-1])
        data = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * scale
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else dtype
        stored = gguf.quants.quantize(data.astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)

    add("token_embd", WORDS, width)
    for layer in range(layers):
        block = f"blk.{layer}."
        add(block + "attn_norm", width)
        for name, rows in (("q", width), ("k", head * KV_HEADS), ("v", head * KV_HEADS), ("output", width)):
            add(block + f"attn_{name}", rows, width, size=0.5 if name == "k" and key_outlier else 2.0)
        if key_outlier is not None:
            bias = np.zeros((KV_HEADS, head), np.float32)
            bias[:, key_outlier[0]] = key_outlier[1]
            writer.add_tensor(f"{block}attn_k.bias", bias.reshape(-1))
        add(block + "ffn_norm", width)
        for name in ("gate", "up"):
            add(block + f"ffn_{name}", HIDDEN, width)
        down = rng.standard_normal((width, HIDDEN)).astype(np.float32) / 8
        writer.add_tensor(
            block + "ffn_down.weight", down * np.float32("nan") if layer == broken_layer else down
        )
    add("output_norm", width)
    add("output", WORDS, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(
    writer: gguf.GGUFWriter,
    special: Sequence[str] = SPECIAL,
    chat: str = TEMPLATE,
    *,
    suppressed: Sequence[int] = (),
) -> None:
    """Bytes, as GPT-2 spells them, and a few special tokens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*SPELLED, MERGED, *special])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * len(special))
    writer.add_token_merges([" ".join(MERGED)])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    if suppressed:
        writer.add_array("tokenizer.ggml.suppress_tokens", list(suppressed))
    writer.add_chat_template(chat)
