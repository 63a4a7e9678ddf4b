"""Writes a small vision-language model as llama.cpp's converter writes llava: a text file and a projector file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType
from tiny_gguf import finish

# The picture stands before the question, wherever the user put it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ bos_token }}"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}"
    "{% for part in message.content if part.type == 'image' %}<image>{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}"
    "{% endif %}"
    "{% elif message.role == 'assistant' %} {{ message.content | trim }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def write_projector(
    path: Path,
    shape: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> None:
    """`shape` has the fields of tiny_vision.VisionShape; tensors have GGUF's names and NumPy's (out, in) shapes."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name("Backbay Tiny Vision")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", False)
    for key, value in {
        "image_size": shape["side"],
        "patch_size": shape["patch"],
        "embedding_length": shape["width"],
        "feed_forward_length": shape["hidden"],
        "projection_dim": shape["text"]["width"],
        "attention.head_count": shape["heads"],
        "block_count": shape["layers"],
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", shape["eps"])
    writer.add_array("clip.vision.feature_layer", [shape["layers"]])
    writer.add_array("clip.vision.image_mean", list(mean))
    writer.add_array("clip.vision.image_std", list(std))
    finish(writer, tensors, Type.F16)


def read_projector(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The encoder's sizes, without those of the text, and its tensors as float32."""
    reader = gguf.GGUFReader(path)
    names = {
        "side": "image_size",
        "patch": "patch_size",
        "width": "embedding_length",
        "hidden": "feed_forward_length",
        "heads": "attention.head_count",
        "layers": "block_count",
        "eps": "attention.layer_norm_epsilon",
    }
    shape = {name: reader.fields[f"clip.vision.{key}"].contents() for name, key in names.items()}
    return shape, {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}
