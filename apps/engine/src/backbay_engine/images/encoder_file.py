"""The file that holds an encoder: a projector, or the model's own file; and the family that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

from backbay import ModelFileError
from backbay.discovery import open_model
from backbay.gguf import ModelFile, nearest, text

from .contract import VisionFamily

Path = str | os.PathLike[str]
VISION = ("v.", "mm.", "model.image_newline", "resampler.")
UNUSED = ("mm.a.", "v.token_embd.", "resampler.pos_embed")  # audio, copies of the text's embeddings, sines
PROJECTORS: Mapping[str, str] = {
    "gemma3": "gemma3:Gemma3Family",
    "idefics3": "idefics3:Idefics3Family",
    "ldp": "llava:MobileVLMFamily",
    "ldpv2": "llava:MobileVLMFamily",
    "llama4": "llama4:Llama4Family",
    "minicpmv4_6": "minicpmv:MiniCPMV46Family",
    "mlp": "llava:LlavaFamily",
    "pixtral": "pixtral:PixtralFamily",
    "qwen2.5vl_merger": "qwen:Qwen25VLFamily",
    "qwen3vl_merger": "qwen:Qwen3VLFamily",
    "resampler": "minicpmv:MiniCPMVFamily",
}
"""Families by the type of a projector, each with its module."""
ARCHITECTURES: Mapping[str, str] = {
    "gemma3": "gemma3:Gemma3Family",
    "llama4": "llama4:Llama4Family",
    "mistral3": "pixtral:PixtralFamily",
    "mllama": "mllama:MllamaFamily",
    "qwen25vl": "qwen:Qwen25VLFamily",
    "qwen35": "qwen:Qwen3VLFamily",
    "qwen35moe": "qwen:Qwen3VLFamily",
    "qwen3vl": "qwen:Qwen3VLFamily",
    "qwen3vlmoe": "qwen:Qwen3VLFamily",
}
"""Families by the architecture of a file that holds all."""
KINDS = text("vision.projector_type"), text("projector_type")


def vision_file(path: Path, projector: Path | None = None) -> ModelFile | None:
    """The file of a model's encoder, open with the encoder's tensors only; None if the model has none.

    It is the projector's file, or the model's own, in Ollama's layout.
    """
    file = open_model(path if projector is None else projector, _is_of_vision)
    if has_encoder(file):
        return file
    file.close()
    if projector is None:
        return None
    found = f"none of them, and the architecture {file.metadata.architecture!r}"
    raise ModelFileError(file.path, None, "a projector with an encoder of pictures, tensors v.*,", found)


def has_encoder(file: ModelFile) -> bool:
    """Whether a file holds an encoder of pictures."""
    return any(name.startswith("v.") for name in file.tensors)


def text_file(path: Path) -> ModelFile:
    """A model's file, open without the tensors of encoders."""
    return open_model(path, lambda name: not name.startswith((*VISION, "a.")))


def vision_family(file: ModelFile, image_tokens: int | None = None) -> VisionFamily:
    """The family of an encoder; ModelFileError names the families that are known."""
    config = file.metadata
    if config.architecture == "clip":
        key = next((key for key in KINDS if key.name in config), KINDS[-1])
        kind, known = key.of(config, "mlp"), PROJECTORS
    else:
        key, known = text("general.architecture"), ARCHITECTURES
        kind = key.of(config)
    if kind not in known:
        expected = f"an encoder of a kind that is known: {', '.join(sorted(known))}"
        raise ModelFileError(file.path, config.offset(key.name), expected, f"{kind!r}{nearest(kind, known)}")
    module, _, name = known[kind].partition(":")
    family: type[VisionFamily] = getattr(import_module(f".families.{module}", __package__), name)
    return family(file, image_tokens)


def _is_of_vision(name: str) -> bool:
    return name.startswith(VISION) and not name.startswith(UNUSED)
