"""Small models that hear, with random weights: a family each, as llama.cpp's converter names their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from small_llama import SPECIAL as PLAIN
from small_llama import add_vocabulary

KINDS = ("ultravox", "voxtral", "qwen2-audio")
MARKS = ["[BEGIN_AUDIO]", "[AUDIO]", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
SPECIAL = [*PLAIN, *MARKS]
WORDS = 257 + len(SPECIAL)
ID = {word: 257 + n for n, word in enumerate(SPECIAL)}
MARK = {
    "ultravox": "<|audio|>",
    "voxtral": "[BEGIN_AUDIO][AUDIO]",
    "qwen2-audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}
TYPES = {"ultravox": "ultravox", "voxtral": "voxtral", "qwen2-audio": "qwen2a"}
STACK = {"ultravox": 8, "voxtral": 4}
WIDTH, HEADS, HIDDEN, BINS, POSITIONS = 16, 2, 24, 20, 52
TEXT, TEXT_HEADS, KV_HEADS, TEXT_HIDDEN, BLOCKS = 32, 4, 2, 48, 3
SECONDS = POSITIONS * 2 / 100  # of a piece

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def template(kind: str) -> str:
    """A template that knows sound, in the way of the family's own."""
    return (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{% if part.type == 'audio' %}"
        + MARK[kind]
        + "{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def write_small_sound(folder: Path, kind: str, *, chat: str | None = None) -> tuple[Path, Path]:
    """Write a model and its projector's file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(KINDS.index(kind))
    model, projector = folder / f"{kind}.gguf", folder / f"{kind}-mmproj.gguf"
    text = gguf.GGUFWriter(model, "qwen2" if kind == "qwen2-audio" else "llama")
    text.add_block_count(BLOCKS)
    text.add_context_length(512)
    text.add_embedding_length(TEXT)
    text.add_feed_forward_length(TEXT_HIDDEN)
    text.add_head_count(TEXT_HEADS)
    text.add_head_count_kv(KV_HEADS)
    text.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(text, SPECIAL, template(kind) if chat is None else chat)
    _finish(text, rng, _text_tensors(biased=kind == "qwen2-audio"))
    ear = gguf.GGUFWriter(projector, "clip")
    ear.add_bool("clip.has_audio_encoder", True)
    ear.add_string("clip.projector_type", TYPES[kind])
    keys = {"embedding_length": WIDTH, "feed_forward_length": HIDDEN, "block_count": BLOCKS}
    for name, value in {**keys, "attention.head_count": HEADS, "num_mel_bins": BINS}.items():
        ear.add_uint32(f"clip.audio.{name}", value)
    ear.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    if kind in STACK:
        ear.add_uint32("clip.audio.projector.stack_factor", STACK[kind])
    _finish(ear, rng, _encoder_tensors(kind))
    return model, projector


def _text_tensors(*, biased: bool) -> Shapes:
    head = TEXT // TEXT_HEADS
    yield "token_embd.weight", (WORDS, TEXT)
    for layer in range(BLOCKS):
        block = f"blk.{layer}."
        yield from ((block + name + "_norm.weight", (TEXT,)) for name in ("attn", "ffn"))
        yield from ((block + f"ffn_{name}.weight", (TEXT_HIDDEN, TEXT)) for name in ("gate", "up"))
        yield block + "ffn_down.weight", (TEXT, TEXT_HIDDEN)
        for part, rows in (("q", TEXT), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            yield block + f"attn_{part}.weight", (rows, TEXT)
            if biased:
                yield block + f"attn_{part}.bias", (rows,)
        yield block + "attn_output.weight", (TEXT, TEXT)
    yield "output_norm.weight", (TEXT,)
    yield "output.weight", (WORDS, TEXT)


def _encoder_tensors(kind: str) -> Shapes:
    for number, inputs in ((1, BINS), (2, WIDTH)):
        yield f"a.conv1d.{number}.weight", (WIDTH, inputs, 3)
        yield f"a.conv1d.{number}.bias", (WIDTH, 1)
    yield "a.position_embd.weight", (POSITIONS, WIDTH)
    for layer in range(BLOCKS):
        block = f"a.blk.{layer}."
        for name in ("ln1", "ln2"):
            yield from ((block + f"{name}.{part}", (WIDTH,)) for part in ("weight", "bias"))
        for name in ("q", "k", "v", "out"):
            yield block + f"attn_{name}.weight", (WIDTH, WIDTH)
            if name != "k":
                yield block + f"attn_{name}.bias", (WIDTH,)
        for name, shape in (("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            yield block + f"ffn_{name}.weight", shape
            yield block + f"ffn_{name}.bias", shape[:1]
    yield from ((f"a.post_ln.{part}", (WIDTH,)) for part in ("weight", "bias"))
    inner = WIDTH * STACK.get(kind, 1)
    if kind == "qwen2-audio":
        yield from (("mm.a.fc.weight", (TEXT, WIDTH)), ("mm.a.fc.bias", (TEXT,)))
    elif kind == "voxtral":
        yield from (("mm.a.mlp.1.weight", (TEXT, inner)), ("mm.a.mlp.2.weight", (TEXT, TEXT)))
    else:
        yield from (("mm.a.norm_pre.weight", (inner,)), ("mm.a.mlp.1.weight", (40, inner)))
        yield from (("mm.a.norm_mid.weight", (20,)), ("mm.a.mlp.2.weight", (TEXT, 20)))


def _finish(writer: gguf.GGUFWriter, rng: np.random.Generator, tensors: Shapes) -> None:
    for name, shape in tensors:
        data = rng.standard_normal(shape).astype(np.float32)
        if "norm" in name or ".ln" in name or "_ln." in name:
            data = (1 + 0.1 * data if name.endswith("weight") else 0.1 * data).astype(np.float32)
        elif len(shape) > 1:
            data *= np.float32(1.5 / np.sqrt(np.prod(shape[1:])))
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
