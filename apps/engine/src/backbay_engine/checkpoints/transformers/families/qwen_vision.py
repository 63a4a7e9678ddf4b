"""Encoders of Qwen's models that see, by the names of projector files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, Final

from ...arrays import LazyArray
from ..changes import equal_parts
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Change, Families, Family
from .texts_beside_encoders import DEEP
from .vision import EYE, block_count, picture_keys

QWEN2: Final[dict[str, Any]] = {
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "depth": 32,
    "num_heads": 16,
    "image_size": 560,  # of no meaning: pictures have any size
    "patch_size": 14,
    "layer_norm_eps": 1e-6,  # of the reference's norms, whatever the configuration has
    "hidden_act": "quick_gelu",
}
"""The values that transformers takes where a configuration states none; so are those of the others."""
QWEN25: Final = {
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "image_size": 560,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "hidden_act": "silu",
    "fullatt_block_indexes": [7, 15, 23, 31],
}
QWEN3: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "depth": 27,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
WINDOW: Final = 112  # pixels, which llama.cpp takes for granted


def with_usual_widths(settings: Settings) -> Settings:
    """The configuration with the encoder's widths under the names that other models have; it has the text's as hidden_size."""
    eye = settings.section(EYE, QWEN2)
    width = eye.whole("embed_dim")
    widths = {"hidden_size": width, "intermediate_size": width * eye.whole("mlp_ratio")}
    return replace(settings, values=settings.values | {EYE: eye.values | widths})


def qwen2vl_keys(settings: Settings) -> Keys:
    return picture_keys(settings, "qwen2vl_merger", QWEN2)


def qwen25vl_keys(settings: Settings) -> Keys:
    eye = settings.section(EYE, QWEN25)
    full, window = eye.wholes("fullatt_block_indexes"), eye.whole("window_size", default=WINDOW)
    every = full[0] + 1 if full else 0
    if every < 1 or full != list(range(every - 1, full[-1] + 1, every)):
        raise eye.refuse("fullatt_block_indexes", "blocks at equal distances")
    return picture_keys(settings, "qwen2.5vl_merger", QWEN25) | {
        "vision.n_wa_pattern": every,
        "vision.window_size": None if window == WINDOW else window,
    }


def qwen3vl_projector_keys(settings: Settings) -> Keys:
    deep = DEEP if settings.architecture.startswith("Qwen3VL") else {}
    eye = settings.section(EYE, QWEN3 | deep)
    marked = set(eye.wholes("deepstack_visual_indexes"))
    patch, places = eye.whole("patch_size"), eye.whole("num_position_embeddings")
    return picture_keys(settings, "qwen3vl_merger", QWEN3) | {
        "vision.image_size": eye.whole("image_size", default=isqrt(max(places, 0)) * patch),
        "vision.spatial_merge_size": eye.whole("spatial_merge_size"),
        "vision.is_deepstack_layers": [n in marked for n in range(block_count(eye))],
    }


def time_slices(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    """The matrices of a patch's two slices of time."""
    width, colours, frames, *square = array.shape
    if frames != 2:
        raise ValueError(frames)
    joint = array.reshape(width, colours * frames, *square)
    slices = (joint.inner(n, colours * frames, frames) for n in range(frames))
    return dict(zip(("v.patch_embd.weight", "v.patch_embd.weight.1"), slices, strict=True))


def further_norms(arrays: Arrays, settings: Settings) -> Arrays:
    """With the numbers of blocks, whose outputs become further vectors of rows, in place of those in a list."""
    listed = settings.section(EYE, QWEN3 | DEEP).wholes("deepstack_visual_indexes")
    found = Arrays()
    for name, array in arrays.items():
        match = re.search(r"deepstack_merger_list\.([0-9]{1,6})\.(norm|linear_fc[12])\.", name)
        if match is not None and int(match[1]) < len(listed):
            part = match[2].removeprefix("linear_")
            name = f"v.deepstack.{listed[int(match[1])]}.{part}.{name[match.end() :]}"  # noqa: PLW2901
        found[name] = array
    return found


MERGED: Final = {r"^model\.visual\.": "visual."}
PATCHES: Mapping[str, Change] = {r"^(?:model\.)?visual\.patch_embed\.proj\.weight$": time_slices}
QWEN25VL = Family(
    "clip",
    keys=qwen25vl_keys,
    changes={**PATCHES, r"attn\.qkv\.": equal_parts("attn.q.", "attn.k.", "attn.v.")},
    names=MERGED | {r"^visual\.merger\.mlp\.(\d)\.": r"mm.\1."},
    tensors=r"^(model\.)?visual\.",
)
QWEN2VL = replace(QWEN25VL, keys=qwen2vl_keys, usual=with_usual_widths)
QWEN3VL = Family(
    "clip",
    keys=qwen3vl_projector_keys,
    changes=PATCHES,
    names=MERGED
    | {
        r"^visual\.merger\.norm\.": "v.post_ln.",
        r"^visual\.merger\.linear_fc1\.": "mm.0.",
        r"^visual\.merger\.linear_fc2\.": "mm.2.",
    },
    prepare=further_norms,
    tensors=r"^(model\.)?visual\.",
)


PROJECTORS: Families = {
    "Qwen2VLForConditionalGeneration": QWEN2VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN25VL,
    **dict.fromkeys(
        (
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
        ),
        QWEN3VL,
    ),
}
"""The encoders, by the classes of transformers."""
