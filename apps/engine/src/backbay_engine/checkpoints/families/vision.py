"""Encoders of models that see, by the names of projector files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, Final

from ..arrays import LazyArray
from ..changes import interleaved, left_out, plus_one
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Change, Families, Family
from ..json_files import read_object
from .texts_beside_encoders import DEEP, chosen, with_text_defaults

SIGLIP: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
"""The values that transformers takes where a configuration states none; so are those of the others."""
IDEFICS3: Final = SIGLIP | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
CLIP: Final = SIGLIP | {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
PIXTRAL: Final = SIGLIP | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
}
QWEN25: Final = {
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "image_size": 560,  # of no meaning: pictures have any size
    "patch_size": 14,
    "layer_norm_eps": 1e-6,  # of the reference's norms, whatever the configuration has
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
EYE: Final = "vision_config"
HEADS: Final = "num_attention_heads", "num_heads"


def picture_keys(settings: Settings, kind: str, defaults: dict[str, Any]) -> Keys:
    """The keys that every encoder of pictures has."""
    eye, processor = settings.section(EYE, defaults), processor_of(settings)
    act = chosen(eye, "hidden_act", ("gelu_pytorch_tanh", "gelu", "silu", "quick_gelu"), "gelu")
    return {
        "has_vision_encoder": True,
        "projector_type": kind,
        "use_silu": True if act == "silu" else None,
        "use_gelu": True if act.startswith("gelu") else None,
        "vision.projection_dim": settings.width,
        "vision.image_size": eye.maybe_whole("image_size"),
        "vision.patch_size": eye.whole("patch_size"),
        "vision.embedding_length": eye.whole("hidden_size"),
        "vision.feed_forward_length": eye.whole("intermediate_size"),
        "vision.block_count": block_count(eye),
        "vision.attention.head_count": eye.whole(*HEADS),
        "vision.attention.layer_norm_epsilon": eye.number("layer_norm_eps"),
        "vision.image_mean": processor.numbers("image_mean") or None,
        "vision.image_std": processor.numbers("image_std") or None,
    }


def block_count(eye: Settings) -> int:
    return eye.over({"num_hidden_layers": eye.whole("num_hidden_layers", "depth")}).blocks


def processor_of(settings: Settings) -> Settings:
    """What the folder says of the preparation of pictures; newer versions of transformers write another file."""
    old, new = (
        read_object(settings.folder / f"{name}_config.json", required=False)
        for name in ("preprocessor", "processor")
    )
    own = replace(settings, values=new).section("image_processor").values
    return replace(settings, values={**old, **new, **own})


def clip_blocks(settings: Settings) -> int:
    """The blocks up to the one whose output becomes rows; a negative number counts from the last output."""
    count = block_count(settings.section(EYE, CLIP))
    layer = settings.whole("vision_feature_layer", default=-2)
    blocks = count + 1 + layer if layer < 0 else layer
    if not 1 <= blocks <= count:
        raise settings.refuse("vision_feature_layer", f"an output of the {count} blocks")
    return blocks


def llava_keys(settings: Settings) -> Keys:
    blocks = clip_blocks(settings)
    chosen(settings, "vision_feature_select_strategy", ("default",), "default")
    chosen(settings, "projector_hidden_act", ("gelu",), "gelu")
    points = settings.values.get("image_grid_pinpoints")
    keys = picture_keys(settings, "mlp", CLIP)
    keys |= {
        "has_llava_projector": True,
        "use_gelu": bool(keys["use_gelu"]),
        "vision.block_count": blocks,
        "vision.feature_layer": [blocks],
    }
    if points is not None:
        keys["vision.image_grid_pinpoints"] = _flat(settings, points)
        keys["vision.mm_patch_merge_type"] = "spatial_unpad"
    return keys


def _flat(settings: Settings, points: Any) -> list[int]:
    pairs = [Settings(settings.folder, {"pair": pair}, "").wholes("pair") for pair in points]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise settings.refuse("image_grid_pinpoints", "pairs of a height and a width")
    return [side for pair in pairs for side in pair]


def first_blocks(arrays: Arrays, settings: Settings) -> Arrays:
    """Without the blocks, and the norm, behind the output that becomes rows."""
    blocks, kept = clip_blocks(settings), Arrays()
    for name, array in arrays.items():
        match = re.search(r"encoder\.layers\.([0-9]{1,6})\.", name)
        if (match is None or int(match[1]) < blocks) and "post_layernorm" not in name:
            kept[name] = array
    return kept


def gemma3_keys(settings: Settings) -> Keys:
    eye = settings.section(EYE, SIGLIP)
    rows = isqrt(processor_of(settings).whole("image_seq_length", default=settings.whole(SOFT, default=256)))
    pool = eye.whole("image_size") // max(eye.whole("patch_size"), 1) // max(rows, 1)
    factor = None if pool in (0, 4) else pool  # 4 in all published models
    return picture_keys(settings, "gemma3", SIGLIP) | {"vision.projector.scale_factor": factor}


SOFT: Final = "mm_tokens_per_image"


def idefics3_keys(settings: Settings) -> Keys:
    keys = picture_keys(settings, "idefics3", IDEFICS3)
    edge = processor_of(settings).section("size").whole("longest_edge", default=keys["vision.image_size"])
    return keys | {
        "vision.projector.scale_factor": settings.whole("scale_factor", default=2),
        "vision.preproc_image_size": edge,
    }


def pixtral_keys(settings: Settings) -> Keys:
    chosen(settings, "vision_feature_select_strategy", ("default", "full"), "full")
    merge = 2 if settings.architecture.startswith("Mistral3") else None
    return picture_keys(settings, "pixtral", PIXTRAL) | {
        "vision.spatial_merge_size": settings.maybe_whole("spatial_merge_size") or merge
    }


def interleaved_heads(array: LazyArray, settings: Settings) -> LazyArray:
    return interleaved(array, settings.section(EYE, PIXTRAL).heads)


def line_break(array: LazyArray, settings: Settings) -> LazyArray:
    """The embedding of the token that ends a line of patches, which the text has, too."""
    id = _break_id(settings)
    return array.part(id, id + 1).regrouped(array.shape[1])


def _break_id(settings: Settings) -> int:
    words = read_object(settings.folder / "tokenizer.json", required=False).get("added_tokens")
    decoder = read_object(settings.folder / "tokenizer_config.json", required=False).get(
        "added_tokens_decoder"
    )
    listed = [(token.get("content"), token.get("id")) for token in words or () if isinstance(token, dict)]
    if isinstance(decoder, dict):
        given = ((id, token) for id, token in decoder.items() if isinstance(token, dict) and id.isdecimal())
        listed += [(token.get("content"), int(id)) for id, token in given]
    found = next((id for word, id in listed if word == BREAK and isinstance(id, int)), None)
    if found is None:
        raise replace(settings, values={}).refuse(BREAK, "a token of tokenizer.json")
    return found


BREAK: Final = "[IMG_BREAK]"


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


def thirds(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    """Queries, keys and values of as many rows."""
    third = array.shape[0] // 3
    parts = array.split(third, third, third)
    return dict(zip(("attn.q.", "attn.k.", "attn.v."), parts, strict=True))


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


TOWER: Final = {
    r"^model\.": "",
    r"^vision_tower\.(?=embeddings|encoder|pre_layrnorm|post_layernorm)": "vision_tower.vision_model.",
}
"""The names of published files, which the table of the gguf package has, where newer versions of transformers save others."""
OF_TOWER: Final = r"^(model\.)?(vision_tower|multi_modal_projector)\.|image_newline$"
MERGED: Final = {r"^model\.visual\.": "visual."}
PATCHES: Mapping[str, Change] = {r"^(?:model\.)?visual\.patch_embed\.proj\.weight$": time_slices}
LLAVA = Family(
    "clip",
    keys=llava_keys,
    names=TOWER
    | {r"^multi_modal_projector\.linear_1\.": "mm.0.", r"^multi_modal_projector\.linear_2\.": "mm.2."},
    prepare=first_blocks,
    usual=with_text_defaults,
    tensors=OF_TOWER,
)
PIXTRAL_TOWER = Family(
    "clip",
    keys=pixtral_keys,
    changes={r"\.[qk]_proj\.": interleaved_heads, r"^.*embed_tokens\.weight$": line_break},
    names=TOWER
    | {
        r"^multi_modal_projector\.linear_(\d)\.": r"mm.\1.",
        r"^.*embed_tokens\.weight$": "v.token_embd.img_break",
    },
    usual=with_text_defaults,
    tensors=OF_TOWER + r"|(^|\.)embed_tokens\.weight$",
)
GEMMA3 = Family(
    "clip",
    keys=gemma3_keys,
    changes={r"soft_emb_norm\.weight$": plus_one, r"vision_model\.head\.": left_out},
    names=TOWER | {r"mm_input_projection_weight$": "mm_input_projection.weight"},
    tensors=OF_TOWER,
)
IDEFICS = Family(
    "clip",
    keys=idefics3_keys,
    usual=with_text_defaults,
    tensors=r"^(model\.)?(vision_model|connector)\.",
)
QWEN25VL = Family(
    "clip",
    keys=qwen25vl_keys,
    changes={**PATCHES, r"attn\.qkv\.": thirds},
    names=MERGED | {r"^visual\.merger\.mlp\.(\d)\.": r"mm.\1."},
    tensors=r"^(model\.)?visual\.",
)
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


def llava(settings: Settings) -> Family:
    """LLaVA, or Pixtral, whose class of transformers is the same."""
    known = {"clip_vision_model": LLAVA, "pixtral": PIXTRAL_TOWER}
    return known[chosen(settings.section(EYE), "model_type", tuple(known), "clip_vision_model")]


PROJECTORS: Families = {
    "LlavaForConditionalGeneration": llava,
    "LlavaNextForConditionalGeneration": LLAVA,
    "Mistral3ForConditionalGeneration": PIXTRAL_TOWER,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Idefics3ForConditionalGeneration": IDEFICS,
    "SmolVLMForConditionalGeneration": IDEFICS,
    "Qwen2_5_VLForConditionalGeneration": QWEN25VL,
    "Qwen3VLForConditionalGeneration": QWEN3VL,
    "Qwen3_5ForConditionalGeneration": QWEN3VL,
    "Qwen3_5MoeForConditionalGeneration": QWEN3VL,
}
"""The encoders, by the classes of transformers."""
