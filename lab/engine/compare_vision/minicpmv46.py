"""A small random model of MiniCPM-V 4.6, as transformers makes it."""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers
from kinds import ID, PATCH, TEXT, VISION, Kind
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

SCALE = 112  # about the sides of slices
MARKS = {"image_start": "<image>", "image_end": "</image>", "slice_start": "<slice>", "slice_end": "</slice>"}
MIXED = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}


def _model() -> Any:
    config = transformers.MiniCPMV4_6Config(
        text_config={**TEXT, **MIXED, "model_type": "qwen3_5_text"},
        vision_config={**VISION, "image_size": 10 * PATCH},
        insert_layer_id=1,
        image_token_id=ID["<|image_pad|>"],
        video_token_id=ID["<|video_pad|>"],
        tie_word_embeddings=False,
    )
    return transformers.MiniCPMV4_6ForConditionalGeneration(config)


def _rows(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    found = model.model.get_image_features(inputs["pixel_values"], inputs["target_sizes"])
    return torch.cat(list(found.pooler_output))


def _tokens(given: Any) -> list[int]:
    processor = type("Marks", (), {"slice_mode": True, "image_token": "<|image_pad|>"})()
    for name, mark in MARKS.items():
        setattr(processor, f"{name}_token", mark)
    text = MiniCPMV4_6Processor.replace_image_token(processor, given, 0, image_token_divisor=16)
    return [ID[word] for word in re.findall(r"<[^>]+>|\n|\d", f"<image_id>0</image_id>{text}")]


def _processor() -> Any:
    return transformers.MiniCPMV4_6ImageProcessor(scale_resolution=SCALE, patch_size=PATCH)


KINDS = {"minicpmv46": Kind(_model, _processor, _rows, tokens=_tokens, seed=2)}
