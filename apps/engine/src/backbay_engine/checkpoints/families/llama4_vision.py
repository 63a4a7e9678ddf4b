"""The encoder of Llama 4, by the names of projector files."""

from __future__ import annotations

from typing import Any, Final

from ..config_json import Keys, Settings
from ..family_mapping import Families, Family
from .vision import EYE, picture_keys

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
"""The values that transformers takes where a configuration states none."""


def llama4_projector_keys(settings: Settings) -> Keys:
    eye = settings.section(EYE, LLAMA4)
    ratio = eye.number("pixel_shuffle_ratio")
    if not 1 / 64 <= ratio <= 1:
        raise eye.refuse("pixel_shuffle_ratio", "a number from 1/64 to 1")
    return picture_keys(settings, "llama4", LLAMA4) | {"vision.projector.scale_factor": int(1 / ratio)}


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
PROJECTORS: Families = {"Llama4ForConditionalGeneration": LLAMA4_TOWER}
