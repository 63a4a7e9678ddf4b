"""Encoders of models that see, by the names of projector files."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isqrt
from typing import Any, Final

from ...arrays import LazyArray
from ...json_files import read_object
from ..changes import interleaved, left_out, plus_one
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Families, Family
from .texts_beside_encoders import chosen, with_text_defaults

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
LLAMA4: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "norm_eps": 1e-5,
    "hidden_act": "gelu",
    "pixel_shuffle_ratio": 0.5,
}
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
        "vision.attention.layer_norm_epsilon": eye.number("layer_norm_eps", "norm_eps"),
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


def llama4_projector_keys(settings: Settings) -> Keys:
    eye = settings.section(EYE, LLAMA4)
    ratio = eye.number("pixel_shuffle_ratio")
    if not 1 / 64 <= ratio <= 1:
        raise eye.refuse("pixel_shuffle_ratio", "a number from 1/64 to 1")
    return picture_keys(settings, "llama4", LLAMA4) | {"vision.projector.scale_factor": int(1 / ratio)}


TOWER: Final = {
    r"^model\.": "",
    r"^vision_tower\.(?=embeddings|encoder|pre_layrnorm|post_layernorm)": "vision_tower.vision_model.",
}
"""The names of published files, which the table of the gguf package has, where newer versions of transformers save others."""
OF_TOWER: Final = r"^(model\.)?(vision_tower|multi_modal_projector)\.|image_newline$"
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
LLAMA4_TOWER = Family(
    "clip",
    keys=llama4_projector_keys,
    names={
        r"^model\.": "",
        # the table of the gguf package has a name for it that llama.cpp takes for another norm
        r"^vision_model\.model\.layers\.(\d+)\.post_attention_layernorm\.": r"v.blk.\1.ln2.",
        r"^vision_model\.positional_embedding_vlm$": "v.position_embd.weight",
        r"^vision_model\.vision_adapter\.mlp\.fc([12])\.": r"mm.model.mlp.\1.",
        r"^multi_modal_projector\.linear_1\.": "mm.model.fc.",
    },
    tensors=r"^(model\.)?(vision_model|multi_modal_projector)\.",
)
IDEFICS = Family(
    "clip",
    keys=idefics3_keys,
    usual=with_text_defaults,
    tensors=r"^(model\.)?(vision_model|connector)\.",
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
    "Llama4ForConditionalGeneration": LLAMA4_TOWER,
}
"""The encoders, by the classes of transformers."""
