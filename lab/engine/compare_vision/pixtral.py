"""Small random models of Pixtral and Mistral Small 3."""

from __future__ import annotations

from typing import Any

import transformers
from kinds import ID, PATCH, TEXT, VISION, Kind, pooled

EDGE = 224
EYE = {**VISION, "model_type": "pixtral", "image_size": EDGE, "hidden_act": "silu", "head_dim": 16}


def _mistral3() -> Any:
    config = transformers.Mistral3Config(
        vision_config=EYE,
        text_config={**TEXT, "model_type": "mistral", "head_dim": 12, "sliding_window": None},
        image_token_index=ID["[IMG]"],
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return _mended(transformers.Mistral3ForConditionalGeneration(config))


def _pixtral() -> Any:
    config = transformers.LlavaConfig(
        vision_config=EYE,
        text_config={**TEXT, "model_type": "mistral", "head_dim": 12, "sliding_window": None},
        image_token_index=ID["[IMG]"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return transformers.LlavaForConditionalGeneration(config)


def _mended(model: Any) -> Any:
    """The reference drops the dimension of rows where there is one row; a dimension before it is dropped instead."""
    model.model.multi_modal_projector.register_forward_hook(lambda module, given, rows: rows[None])
    return model


def _processor(unit: int) -> Any:
    square = {"height": unit, "width": unit}
    return transformers.PixtralImageProcessor(size={"longest_edge": EDGE}, patch_size=square)


KINDS = {
    "mistral3": Kind(_mistral3, lambda: _processor(2 * PATCH), pooled),
    "pixtral": Kind(_pixtral, lambda: _processor(PATCH), pooled),
}
