"""Writes a small Whisper as a folder of transformers, and reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from .vocabulary import END, NO_TIMESTAMPS, PREVIOUS, START, UNSPOKEN

LATEST_BEGIN = 150  # of the first phrase, in steps of 0.02 seconds
SIZES = {
    "vocabulary": "vocab_size",
    "bins": "num_mel_bins",
    "positions": "max_source_positions",
    "width": "d_model",
    "heads": "encoder_attention_heads",
    "layers": "encoder_layers",
    "hidden": "encoder_ffn_dim",
    "context": "max_target_positions",
}
"""The fields of network.Shape, and their names in config.json."""


def write_folder(
    folder: Path, shape: Mapping[str, int], tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """`shape` has the fields of network.Shape. Matrices are written as f16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: np.ascontiguousarray(value, np.float16) for name, value in tensors.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    ids = _ids(tokenizer)
    _write(folder / "config.json", _config(shape) | ids)
    _write(folder / "generation_config.json", _rules(tokenizer, shape["context"]) | ids)
    _write(folder / "preprocessor_config.json", _preparation(shape))
    names = {"tokenizer_class": "WhisperTokenizer", "bos_token": END, "eos_token": END, "unk_token": END}
    _write(folder / "tokenizer_config.json", names)


def read_folder(folder: Path) -> tuple[dict[str, int], dict[str, np.ndarray], Tokenizer]:
    """The arguments of write_folder."""
    config = json.loads((folder / "config.json").read_text())
    shape = {field: config[name] for field, name in SIZES.items()}
    return shape, load_file(folder / "model.safetensors"), Tokenizer.from_file(str(folder / "tokenizer.json"))


def _ids(tokenizer: Tokenizer) -> dict[str, Any]:
    end = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.token_to_id(END))
    return {**end, "decoder_start_token_id": tokenizer.token_to_id(START)}


def _config(shape: Mapping[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "torch_dtype": "float16",
        "activation_function": "gelu",
        "num_hidden_layers": shape["layers"],
        "decoder_layers": shape["layers"],
        "decoder_attention_heads": shape["heads"],
        "decoder_ffn_dim": shape["hidden"],
        **{name: shape[field] for field, name in SIZES.items()},
    }


def _rules(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """The rules of transcripts; the model knows English alone."""
    space = [id for id in (tokenizer.token_to_id("Ġ"),) if id is not None]
    return {
        "is_multilingual": False,
        "prev_sot_token_id": tokenizer.token_to_id(PREVIOUS),
        "no_timestamps_token_id": tokenizer.token_to_id(NO_TIMESTAMPS),
        "max_initial_timestamp_index": LATEST_BEGIN,
        "begin_suppress_tokens": space,
        "suppress_tokens": [tokenizer.token_to_id(name) for name in UNSPOKEN],
        "max_length": context,
        "return_timestamps": False,
    }


def _preparation(shape: Mapping[str, int]) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": shape["bins"],
        "chunk_length": shape["positions"] // 50,
        "hop_length": 160,
        "n_fft": 400,
        "sampling_rate": 16000,
        "padding_value": 0.0,
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
