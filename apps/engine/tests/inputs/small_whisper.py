"""Small folders of Whisper, with random weights, as transformers writes them; windows of two seconds."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoint_folders import TEXTS, Array, write_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

POSITIONS, CONTEXT, WIDTH, BINS = 100, 48, 16, 20
LANGUAGES = ("<|en|>", "<|zh|>", "<|de|>")
TASKS = ("<|translate|>", "<|transcribe|>")
MARKS = ("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
TIMES = tuple(f"<|{n * 0.02:.2f}|>" for n in range(POSITIONS + 1))
WORDS = 290
SOUNDS = (1.5, 2.0, 5.0, 7.3)
"""Seconds of sounds whose transcripts are compared."""


def vocabulary() -> Tokenizer:
    """Byte pairs, the end of a text, and Whisper's marks and times behind them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS * 2, trainer)
    marks = ("<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, *TASKS, *MARKS)
    made.add_special_tokens([AddedToken(text, special=True) for text in marks])
    made.add_tokens([AddedToken(text) for text in TIMES])
    return made


def rules(tokenizer: Tokenizer, *, multilingual: bool = True) -> dict[str, Any]:
    """The file generation_config.json."""
    id = tokenizer.token_to_id
    found: dict[str, Any] = {
        "bos_token_id": id("<|endoftext|>"),
        "eos_token_id": id("<|endoftext|>"),
        "pad_token_id": id("<|endoftext|>"),
        "decoder_start_token_id": id("<|startoftranscript|>"),
        "prev_sot_token_id": id("<|startofprev|>"),
        "no_timestamps_token_id": id("<|notimestamps|>"),
        "begin_suppress_tokens": [id("Ġ"), id("<|endoftext|>")],
        "suppress_tokens": [1, 2, 7, *map(id, ("<|startoftranscript|>", *TASKS, *MARKS[:3]))],
        "max_initial_timestamp_index": 10,
        "max_length": CONTEXT,
        "is_multilingual": multilingual,
        "return_timestamps": False,
    }
    if multilingual:
        found["lang_to_id"] = {text: id(text) for text in LANGUAGES}
        found["task_to_id"] = {text.strip("<|>"): id(text) for text in TASKS}
    return found


def config(words: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": words,
        "num_mel_bins": BINS,
        "d_model": WIDTH,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_layers": 3,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 40,
        "num_hidden_layers": 2,
        "max_source_positions": POSITIONS,
        "max_target_positions": CONTEXT,
        "activation_function": "gelu",
        **more,
    }


def tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Array]:
    rng, width = np.random.default_rng(seed), config["d_model"]
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (width, config["num_mel_bins"], 3),
        "encoder.conv2.weight": (width, width, 3),
        "encoder.embed_positions.weight": (config["max_source_positions"], width),
        "decoder.embed_tokens.weight": (config["vocab_size"], width),
        "decoder.embed_positions.weight": (config["max_target_positions"], width),
    }
    for side, other in (("encoder", ()), ("decoder", ("encoder_attn",))):
        hidden = config[f"{side}_ffn_dim"]
        for layer in range(config[f"{side}_layers"]):
            base = f"{side}.layers.{layer}."
            for part in ("self_attn", *other):
                names = (f"{base}{part}.{name}_proj.weight" for name in ("q", "k", "v", "out"))
                shapes |= dict.fromkeys(names, (width, width))
                shapes[f"{base}{part}_layer_norm.weight"] = (width,)
            shapes |= {f"{base}fc1.weight": (hidden, width), f"{base}fc2.weight": (width, hidden)}
            shapes[f"{base}final_layer_norm.weight"] = (width,)
        shapes[f"{side}.layer_norm.weight"] = (width,)
    made = {}
    for name, shape in shapes.items():
        spread = 1.5 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 and "embed" not in name else 0.3
        numbers = rng.standard_normal(shape) * spread + ("norm" in name)
        made[f"model.{name}"] = numbers.astype(np.float32)
        if "embed" not in name and "k_proj" not in name:
            made[f"model.{name.removesuffix('weight')}bias"] = rng.normal(0, 0.2, shape[:1]).astype(
                np.float32
            )
    return made


def write_whisper(folder: Path, *, seed: int = 0, multilingual: bool = True, **more: Any) -> Path:
    """A small Whisper with a tokenizer, and the rules of its transcripts."""
    tokenizer = vocabulary()
    made = config(tokenizer.get_vocab_size(), **more)
    given = rules(tokenizer, multilingual=multilingual)
    made |= {
        name: given[name]
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    }
    special = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    write_folder(folder, made, tensors(made, seed), tokenizer=tokenizer, tokenizer_config=special)
    (folder / "generation_config.json").write_text(json.dumps(given))
    return folder


# -- whisper.cpp's file --------------------------------------------------------------------------------------

PARTS = {
    "self_attn.k_proj": "attn.key",
    "self_attn.q_proj": "attn.query",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
WHOLE = {
    "encoder.layer_norm": "encoder.ln_post",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.layer_norm": "decoder.ln",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}
"""The names of whisper.cpp's converter, models/convert-h5-to-ggml.py."""


def write_ggml(path: Path, *, kind: str = "F16", with_end: bool = False, seed: int = 0, **more: Any) -> Path:
    """The model of `write_whisper` as whisper.cpp's converter writes it, or its quantizer, with matrices of a kind.

    with_end  whether the vocabulary holds the end of a text, as where it was made of a folder of transformers
    """
    tokenizer = vocabulary()
    made = config(tokenizer.get_vocab_size(), **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, **more})
    number = getattr(gguf.GGMLQuantizationType, kind)
    names = ("vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers")
    names += ("max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers", "num_mel_bins")
    numbers = [made[name] for name in names] + [0 if kind == "F32" else 1 if kind == "F16" else 2007]
    data = struct.pack("<12i", 0x67676D6C, *numbers)
    bins = made["num_mel_bins"]
    data += struct.pack("<2i", bins, 201) + bytes(4 * bins * 201)
    letters = pre_tokenizers.ByteLevel.alphabet()
    spelled = {letter: byte for byte, letter in _byte_letters().items()}
    assert set(spelled) == set(letters)
    words = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda pair: pair[1])
    texts = [bytes(spelled[letter] for letter in word) for word, _ in words]
    texts += [b"<|endoftext|>"] if with_end else []
    data += struct.pack("<i", len(texts))
    data += b"".join(struct.pack("<i", len(text)) + text for text in texts)
    found = tensors(made, seed).items()
    path.write_bytes(data + b"".join(_tensor(_short(name), array, number) for name, array in found))
    return path


def _tensor(name: str, array: Array, number: gguf.GGMLQuantizationType) -> bytes:
    kind, plain = number, gguf.GGMLQuantizationType.F32
    if re.search("conv[12].bias", name):
        array = array[:, None]
    if array.ndim < 2 or re.search("conv[12].bias|positional_embedding", name):
        kind = plain
    elif array.ndim == 3 and kind.name.startswith("Q"):
        kind = gguf.GGMLQuantizationType.F16
    head = struct.pack("<3i", array.ndim, len(name), kind) + struct.pack(
        f"<{array.ndim}i", *array.shape[::-1]
    )
    return head + name.encode() + gguf.quants.quantize(array, kind).tobytes()


def _short(name: str) -> str:
    name = name.removeprefix("model.").replace(".layers.", ".blocks.")
    for long, short in (WHOLE | PARTS).items():
        name = re.sub(rf"(^|(?<=\.)){re.escape(long)}(?=\.|$)", short, name, count=1)
    return name


def _byte_letters() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
