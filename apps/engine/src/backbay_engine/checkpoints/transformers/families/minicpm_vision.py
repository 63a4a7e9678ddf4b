"""MiniCPM-V: texts of Qwen, and SigLIP with queries behind it, or from 4.6 on with mergers of patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import LazyArray, constant
from ..changes import equal_parts, left_out, transposed
from ..config_json import Keys, Settings, SignedNumber
from ..family_mapping import Arrays, Families, Family
from .delta_rules import QWEN35_DENSE
from .texts_beside_encoders import QWEN2
from .vision import EYE, SIGLIP, TOWER, picture_keys, processor_of

VERSIONS: Final = {2.6: (3, QWEN2), 4.5: (6, Family("qwen3"))}
"""llama.cpp's number, and the text, by the version that the configuration states."""
WIDEST: Final = 1 << 16


def of_version(settings: Settings) -> tuple[int, Family]:
    version = settings.number("version", default=0)
    if version not in VERSIONS:
        raise settings.refuse("version", " or ".join(map(str, VERSIONS)))
    return VERSIONS[version]


def minicpmv_text(settings: Settings) -> Family:
    _, text = of_version(settings)
    return replace(text, names={r"^llm\.": ""}, tensors=r"^llm\.")


def keys_of_whole_tower(settings: Settings, kind: str) -> Keys:
    if settings.flag("drop_vision_last_layer"):
        raise settings.refuse("drop_vision_last_layer", "false")
    return picture_keys(settings, kind, SIGLIP)


def minicpmv_keys(settings: Settings) -> Keys:
    keys, processor = keys_of_whole_tower(settings, "resampler"), processor_of(settings)
    for name in ("mean", "std"):
        keys[f"vision.image_{name}"] = processor.numbers(f"norm_{name}") or [0.5] * 3
    return keys | {
        "has_minicpmv_projector": True,
        "minicpmv_version": SignedNumber(of_version(settings)[0]),
        "minicpmv_query_num": settings.whole("query_num", default=64),
        "vision.image_size": settings.whole("image_size", default=448),
    }


def projection(array: LazyArray, settings: Settings) -> Mapping[str, LazyArray]:
    """The matrix that vectors multiply from the left in the authors' code."""
    return {"resampler.proj.weight": transposed(array, settings)}


def place_sines(settings: Settings, beside: LazyArray) -> Arrays:
    """Sines and cosines of the columns and rows of the largest grid, which llama.cpp asks for."""
    eye, width = settings.section(EYE, SIGLIP), settings.width
    side = eye.whole("image_size") // max(eye.whole("patch_size"), 1)
    if width % 4 or not 0 < width <= WIDEST or not 0 < side <= 1 << 8:
        raise settings.refuse("hidden_size", "a multiple of 4")
    frequencies = 1 / 1e4 ** (np.arange(width // 4, dtype=np.float32) / np.float32(width / 4))
    row, column = np.indices((side, side), np.float32).reshape(2, -1, 1)
    angles = [axis * frequencies for axis in (column, row)]
    table = np.hstack([part for angle in angles for part in (np.sin(angle), np.cos(angle))])
    return {"resampler.pos_embed_k": constant(table.astype(np.float32), beside)}


def minicpmv46_keys(settings: Settings) -> Keys:
    if settings.whole("merger_times", default=1) != 1:
        raise settings.refuse("merger_times", "1")
    keys = keys_of_whole_tower(settings, "minicpmv4_6")
    inner = settings.section(EYE).whole("insert_layer_id", default=6)
    return keys | {
        "vision.image_size": processor_of(settings).whole("scale_resolution", default=448),
        "vision.projector.scale_factor": 2 if merges_once(settings) else 4,
        "vision.wa_layer_indexes": [settings.whole("insert_layer_id", default=inner)],
    }


def merges_once(settings: Settings) -> bool:
    """Whether patches are merged behind the tower alone."""
    mode = processor_of(settings).text("downsample_mode", default="16x")
    if mode not in ("4x", "16x"):
        raise settings.refuse("downsample_mode", "4x or 16x")
    return mode == "4x"


RESAMPLER = Family(
    "clip",
    keys=minicpmv_keys,
    changes={
        r"attn\.in_proj_(weight|bias)$": equal_parts(*(rf"attn.{part}.\1" for part in "qkv")),
        r"resampler\.proj$": projection,
    },
    names={
        r"^vpm\.vision_model\.": "vpm.",
        r"^vpm\.post_layernorm\.": "v.post_ln.",
    },
    further=place_sines,
    tensors=r"^(vpm|resampler)\.",
)
MERGERS = Family(
    "clip",
    keys=minicpmv46_keys,
    names=TOWER
    | {
        r"^vision_tower\.vit_merger\.layer_norm1\.": "v.vit_merger.ln1.",
        r"^vision_tower\.vit_merger\.self_attn\.([qkv])_proj\.": r"v.vit_merger.attn_\1.",
        r"^vision_tower\.vit_merger\.self_attn\.out_proj\.": "v.vit_merger.attn_out.",
        r"^vision_tower\.vit_merger\.pre_norm\.": "v.vit_merger.ds_ln.",
        r"^vision_tower\.vit_merger\.linear_1\.": "v.vit_merger.ds_ffn_up.",
        r"^vision_tower\.vit_merger\.linear_2\.": "v.vit_merger.ds_ffn_down.",
        r"^merger\.mlp\.0\.pre_norm\.": "mm.input_norm.",
        r"^merger\.mlp\.0\.linear_1\.": "mm.up.",
        r"^merger\.mlp\.0\.linear_2\.": "mm.down.",
    },
    tensors=r"^(model\.)?(vision_tower|merger)\.",
)


def minicpmv46(settings: Settings) -> Family:
    unused = {r"vit_merger\.": left_out} if merges_once(settings) else {}
    return replace(MERGERS, changes=unused)


FAMILIES: Families = {
    "MiniCPMV": minicpmv_text,
    "MiniCPMV4_6ForConditionalGeneration": replace(
        QWEN35_DENSE, tensors=r"^(model\.)?(language_model|layers|embed_tokens|norm|lm_head)\."
    ),
}
PROJECTORS: Families = {"MiniCPMV": RESAMPLER, "MiniCPMV4_6ForConditionalGeneration": minicpmv46}
