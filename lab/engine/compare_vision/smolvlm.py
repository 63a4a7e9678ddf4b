"""Small random models of Idefics 3 and SmolVLM."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from kinds import ID, SIDE, TEXT, VISION, Kind


def _smolvlm() -> Any:
    config = transformers.SmolVLMConfig(
        vision_config=VISION,
        text_config={**TEXT, "model_type": "llama", "architectures": ["VLlama3ForCausalLM"]},
        image_token_id=ID["<image>"],
        scale_factor=2,
        pad_token_id=TEXT["pad_token_id"],
    )
    return transformers.SmolVLMForConditionalGeneration(config)


def _idefics3() -> Any:
    """Squares of three by three patches, and a longest edge that no tiles fill."""
    config = transformers.Idefics3Config(
        vision_config={**VISION, "image_size": 48, "patch_size": 8},
        text_config={**TEXT, "model_type": "llama", "architectures": ["VLlama3ForCausalLM"]},
        image_token_id=ID["<image>"],
        scale_factor=3,
        pad_token_id=TEXT["pad_token_id"],
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def _features(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    found = model.model.get_image_features(**inputs)
    return torch.cat(list(getattr(found, "pooler_output", found)))


HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
KINDS = {
    "smolvlm": Kind(
        _smolvlm,
        lambda: transformers.SmolVLMImageProcessor(
            size={"longest_edge": 4 * SIDE}, max_image_size={"longest_edge": SIDE}, **HALF
        ),
        _features,
    ),
    "idefics3": Kind(
        _idefics3,
        lambda: transformers.Idefics3ImageProcessor(
            size={"longest_edge": 100}, max_image_size={"longest_edge": 48}, **HALF
        ),
        _features,
    ),
}
