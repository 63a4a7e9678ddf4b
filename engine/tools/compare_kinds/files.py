"""Model files, made by llama.cpp's converter from folders of transformers."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from kind import Kind

UNKNOWN, CONTROL, NORMAL = 2, 3, 1


def convert(folder: Path, target: Path, converter: Path, kind: Kind) -> Path:
    """The converter's file in f32. The vocabulary is a stand-in: the models have no tokenizers."""
    described = folder / "config.json"
    config = json.loads(described.read_text())
    if kind.describe is not None:
        kind.describe(config)
        described.write_text(json.dumps(config))
    for name, content in kind.files.items():
        (folder / name).write_text(content)
    sys.path[:0] = [path for path in (str(converter / "gguf-py"), str(converter)) if path not in sys.path]
    import conversion
    import gguf

    logging.getLogger("hf-to-gguf").setLevel(logging.ERROR)
    logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
    with torch.inference_mode():
        base = conversion.base.ModelBase
        parameters = base.load_hparams(folder, False)
        name = conversion.get_model_architecture(parameters, conversion.base.ModelType.TEXT)
        converting = conversion.get_model_class(name)
        converting.no_mtp = True  # some classes demand blocks that predict further tokens
        made = converting(folder, gguf.LlamaFileType.ALL_F32, target, model_name="small")
        made.set_vocab = lambda: write_vocabulary(made, config)
        for key, value in kind.metadata.items():
            made.gguf_writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        made.write()
    return target


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
