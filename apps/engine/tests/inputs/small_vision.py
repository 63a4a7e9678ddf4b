"""Small models that see, with random weights: a family each, in the layouts that users have."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from small_conformer import EAR_KEYS, ear_tensors
from small_llama import add_vocabulary
from small_vision_encoders import VISION_KEYS, VISION_TENSORS
from small_vision_texts import SPECIAL, TEXTS, text_tensors, write_keys, write_text_keys

KINDS = (
    "gemma3",
    "llava",
    "qwen25vl",
    "mllama",
    "qwen3vl",
    "idefics3",
    "mistral3",
    "ldp",
    "minicpmv",
    "llama4",
    "minicpm46",
)
OTHER_LAYOUTS = ("gemma3 in one file", "qwen2vl")
FAMILIES = (*KINDS, "llava16", "ldpv2", "qwen35", "phi4mm", "qwen2")
"""Every family, and what others of it do otherwise: tiles, another projector, a recurrent text."""
SINGLE = ("qwen25vl", "mllama", "qwen3vl", "phi4mm")
MARK = {
    "gemma3": "<start_of_image>",
    "llava": "<image>",
    "llava16": "<image>",
    "qwen25vl": "<|image_pad|>",
    "qwen2vl": "<|image_pad|>",
    "qwen2": "<|image_pad|>",
    "qwen3vl": "<|image_pad|>",
    "mllama": "<|image|>",
    "idefics3": "<image>",
    "mistral3": "[IMG]",
    "ldp": "<image>",
    "ldpv2": "<image>",
    "qwen35": "<|image_pad|>",
    "minicpmv": "(<image>./</image>)",
    "llama4": "<|image|>",
    "minicpm46": "<|image_pad|>",
    "phi4mm": "<|image|>",
}
PROJECTORS = {
    "llava": "mlp",
    "llava16": "mlp",
    "qwen35": "qwen3vl_merger",
    "qwen2vl": "qwen2.5vl_merger",
    "qwen2": "qwen2vl_merger",
    "mistral3": "pixtral",
    "minicpmv": "resampler",
    "minicpm46": "minicpmv4_6",
}


def template(kind: str) -> str:
    """A template that knows pictures, in the way of the family's own."""
    mark = MARK[kind]
    shown = f"<|vision_start|>{mark}<|vision_end|>" if kind.startswith("qwen") else mark
    return (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
        + shown
        + "{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_small_vision(folder: Path, kind: str, *, chat: str | None = None) -> tuple[Path, Path | None]:
    """Write a model and, if its kind has one, its projector's file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng((*KINDS, *OTHER_LAYOUTS, *FAMILIES[len(KINDS) :]).index(kind))
    model, projector = folder / f"{kind}.gguf", folder / f"{kind}-mmproj.gguf"
    kind, single = kind.removesuffix(" in one file"), kind.endswith(" in one file")
    text = gguf.GGUFWriter(model, TEXTS.get(kind, kind))
    write_text_keys(text, kind)
    add_vocabulary(text, SPECIAL, template(kind) if chat is None else chat)
    tensors = [*text_tensors(kind)]
    if single:
        text.add_uint32("gemma3.mm.tokens_per_image", 4)
    if single or kind in SINGLE:
        write_keys(text, f"{kind}.vision.", VISION_KEYS[kind])
        if kind == "phi4mm":
            write_keys(text, "phi4mm.audio.", EAR_KEYS)
            tensors += ear_tensors()
        _finish(text, rng, [*tensors, *VISION_TENSORS[kind]()])
        return model, None
    _finish(text, rng, tensors)
    eye = gguf.GGUFWriter(projector, "clip")
    eye.add_bool("clip.has_vision_encoder", True)
    eye.add_string("clip.projector_type", PROJECTORS.get(kind, kind))
    eye.add_bool("clip.use_gelu", kind in ("gemma3", "idefics3", "minicpmv", "minicpm46"))
    eye.add_bool("clip.use_silu", kind in ("qwen2vl", "mistral3"))
    write_keys(eye, "clip.vision.", VISION_KEYS[kind])
    _finish(eye, rng, [*VISION_TENSORS[kind]()])
    return model, projector


def _finish(
    writer: gguf.GGUFWriter, rng: np.random.Generator, tensors: list[tuple[str, tuple[int, ...]]]
) -> None:
    for name, shape in tensors:
        data = rng.standard_normal(shape).astype(np.float32)
        if "norm" in name or ".ln" in name or name.endswith("_ln.weight"):
            data = (1 + 0.1 * data if name.endswith("weight") else 0.1 * data).astype(np.float32)
        elif name.endswith("ssm_a"):
            data = -np.abs(data)  # a decay
        elif len(shape) > 1:
            data *= np.float32(1.5 / np.sqrt(np.prod(shape[1:])))
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
