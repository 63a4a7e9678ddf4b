"""Model files, made by llama.cpp's converter from folders of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import llama_converter
from kind import Kind
from llama_converter import CONTROL, NORMAL, UNKNOWN


def convert(folder: Path, target: Path, converter: Path, kind: Kind) -> Path:
    """The converter's file in f32. The vocabulary is a stand-in: the models have no tokenizers."""
    described = folder / "config.json"
    config = json.loads(described.read_text())
    if kind.describe is not None:
        kind.describe(config)
        described.write_text(json.dumps(config))
    for name, content in kind.files.items():
        (folder / name).write_text(content)

    def prepare(made: Any) -> None:
        from gguf import GGUFValueType

        for name in ("_lora_files", "lerp_weights"):
            getattr(type(made), name, {}).clear()  # of the model before
        made.set_vocab = lambda: write_vocabulary(made, config)
        for key, value in kind.metadata.items():
            unsigned = GGUFValueType.UINT32 if isinstance(value, int) else None  # as converters write
            made.gguf_writer.add_key_value(key, value, unsigned or GGUFValueType.get_type(value))

    return llama_converter.convert(folder, target, converter, prepare)


def add_pooling(folder: Path, kind: Kind) -> None:
    """Add the files by which sentence-transformers says how a model pools."""
    names = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}
    if kind.pooling in names:
        modules = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({f"pooling_mode_{names[kind.pooling]}": True})
        )


def write_vocabulary(made: Any, config: dict[str, Any]) -> None:
    count = made.hparams["vocab_size"]
    words = ["<unk>", "<s>", "</s>", *(chr(0x100 + n) for n in range(count - 3))]
    writer = made.gguf_writer
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL] + [NORMAL] * (count - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if config.get("type_vocab_size"):
        writer.add_token_type_count(config["type_vocab_size"])
