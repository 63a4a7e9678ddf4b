"""Small random models of Qwen 3 VL and Qwen 3.5, dense and with experts, as transformers makes them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from kinds import GRID, QWEN_IDS, TEXT, Kind
from minicpmv46 import MIXED

PATCH = 16
DEEP = {"deepstack_visual_indexes": [0, 2]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _axes(sections: list[int]) -> dict[str, Any]:
    """Sections that add up to the pairs of a head; where an axis has fewer than a third, time takes the rest."""
    rope = {
        "rope_type": "default",
        "mrope_section": sections,
        "mrope_interleaved": True,
        "rope_theta": 10000.0,
    }
    return {"head_dim": 16, "rope_scaling": rope, "rope_parameters": rope}


def _config(of: Any, text: dict[str, Any], **vision: Any) -> Any:
    eye = {**GRID, "patch_size": PATCH, "num_position_embeddings": 36, **vision}
    return of(text_config={**TEXT, **text}, vision_config=eye, **QWEN_IDS)


def _dense() -> Any:
    config = _config(transformers.Qwen3VLConfig, _axes([4, 2, 2]), **DEEP)
    return transformers.Qwen3VLForConditionalGeneration(config)


def _experts() -> Any:
    config = _config(transformers.Qwen3VLMoeConfig, {**_axes([2, 3, 3]), **EXPERTS}, **DEEP)
    return transformers.Qwen3VLMoeForConditionalGeneration(config)


def _mixed() -> Any:
    return transformers.Qwen3_5ForConditionalGeneration(_config(transformers.Qwen3_5Config, MIXED))


def _mixed_experts() -> Any:
    experts = {**MIXED, **EXPERTS, "shared_expert_intermediate_size": 32}
    config = _config(transformers.Qwen3_5MoeConfig, experts)
    return transformers.Qwen3_5MoeForConditionalGeneration(config)


def _rows(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The rows of a picture, each followed by those that the first blocks of the text add."""
    found = model.model.get_image_features(**inputs)
    further = [features[0] for features in getattr(found, "deepstack_features", ())]
    return torch.cat([found.pooler_output[0], *further], dim=1)


def _processor() -> Any:
    half = [0.5, 0.5, 0.5]
    sizes = {"min_pixels": 256 * 256, "max_pixels": 4096 * 4096}  # as published
    return transformers.Qwen2VLImageProcessor(patch_size=PATCH, image_mean=half, image_std=half, **sizes)


KINDS = {
    name: Kind(make, _processor, _rows, fitting=(8 * PATCH * 2, 9 * PATCH * 2))
    for name, make in (
        ("qwen3vl", _dense),
        ("qwen3vlmoe", _experts),
        ("qwen35", _mixed),
        ("qwen35moe", _mixed_experts),
    )
}
