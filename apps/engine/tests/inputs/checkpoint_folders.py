"""Small folders of Hugging Face's transformers, written without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.uint16): "BF16",
    np.dtype(np.uint8): "U8",
}
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
TEXTS = ["Once upon a time there was a small model.", "It could read, and write; 123 words a day!\n\n"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
Array = NDArray[Any]


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    """A file in this format; arrays of uint16 are bf16."""
    header, data = dict[str, Any](), b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return file_of(header, data)


def file_of(header: object, data: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    files: int = 1,
    tokenizer: Tokenizer | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder as transformers does; with an index if there are several files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config or {}))
    if files == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        return folder
    places = {
        name: f"model-{1 + index % files:05}-of-{files:05}.safetensors" for index, name in enumerate(tensors)
    }
    for file in set(places.values()):
        (folder / file).write_bytes(
            safetensors({name: tensors[name] for name in tensors if places[name] == file})
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def byte_pairs(texts: Iterable[str] = TEXTS, *, words: int = 400) -> Tokenizer:
    """A byte-level tokenizer with the pattern of Llama 3."""
    made = Tokenizer(models.BPE(ignore_merges=True))
    steps = [
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts, trainer)
    return made


def llama_config(words: int, *, width: int = 64, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": words,
        **more,
    }


def llama_tensors(config: Mapping[str, Any], dtype: Any = np.float32, seed: int = 0) -> dict[str, Array]:
    """Random weights; numbers of bf16 for uint16."""
    rng, width, inner = np.random.default_rng(seed), config["hidden_size"], config["intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (config["vocab_size"], width), "lm_head": (config["vocab_size"], width)}
    for block in range(config["num_hidden_layers"]):
        base = f"model.layers.{block}."
        shapes |= {
            f"{base}self_attn.{name}_proj": (rows, width)
            for name, rows in (("q", width), ("k", kv), ("v", kv), ("o", width))
        }
        shapes |= {f"{base}mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        shapes |= {f"{base}mlp.down_proj": (width, inner)}
        shapes |= {f"{base}{name}_layernorm": (width,) for name in ("input", "post_attention")}
    shapes["model.norm"] = (width,)
    made = {}
    for name, shape in shapes.items():
        numbers = (
            rng.standard_normal(shape) / shape[-1] ** 0.5
            if len(shape) > 1
            else 1 + rng.standard_normal(shape) / 10
        )
        single = numbers.astype(np.float32)
        made[f"{name}.weight"] = (
            (single.view(np.uint32) >> 16).astype(np.uint16) if dtype is np.uint16 else single.astype(dtype)
        )
    return made


def write_llama(folder: Path, *, dtype: Any = np.float32, files: int = 1, **more: Any) -> Path:
    """A small Llama with a tokenizer and a chat template."""
    tokenizer = byte_pairs()
    config = llama_config(tokenizer.get_vocab_size(), **more)
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": TEMPLATE}
    tensors = llama_tensors(config, dtype)
    return write_folder(folder, config, tensors, files=files, tokenizer=tokenizer, tokenizer_config=special)
