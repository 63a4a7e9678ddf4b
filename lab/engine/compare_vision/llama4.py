"""Small random models of Llama 4, with the published chunks and with small ones, as transformers makes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import transformers
from kinds import ID, PATCH, SIDE, TEXT, VISION, Kind

ROWS_OF_TILE = (SIDE // PATCH // 2) ** 2


def _model(**text: Any) -> Callable[[], Any]:
    def make() -> Any:
        width = VISION["hidden_size"]
        config = transformers.Llama4Config(
            text_config={
                **TEXT,
                "num_hidden_layers": 5,
                "head_dim": 16,
                "intermediate_size": 32,
                "intermediate_size_mlp": 64,
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
                "use_qk_norm": True,
                **text,
            },
            vision_config={
                **VISION,
                "intermediate_size": 4 * width,  # also the width of the shuffled patches
                "projector_input_dim": 48,
                "projector_output_dim": 48,
                "vision_output_dim": 48,
                "pixel_shuffle_ratio": 0.5,
            },
            boi_token_index=ID["<|image_start|>"],
            eoi_token_index=ID["<|image_end|>"],
            image_token_index=ID["<|patch|>"],
        )
        config._attn_implementation = "eager"
        return transformers.Llama4ForConditionalGeneration(config)

    return make


def _rows(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    features = model.get_image_features(inputs["pixel_values"]).last_hidden_state
    rows: torch.Tensor = model.multi_modal_projector(features.reshape(-1, features.shape[-1]))
    return rows


def _tokens(given: Any) -> list[int]:
    """The processor's text uses nothing of the processor itself."""
    (grid,) = given["aspect_ratios"].tolist()
    text = transformers.Llama4Processor._prompt_split_image(None, grid, ROWS_OF_TILE)
    return [ID[word] for word in re.findall(r"<\|\w+\|>", text)]


def _processor() -> Any:
    return transformers.Llama4ImageProcessor(size={"height": SIDE, "width": SIDE})


KINDS = {
    "llama4": Kind(_model(), _processor, _rows, tokens=_tokens),
    "llama4-chunked": Kind(
        _model(attention_chunk_size=40, floor_scale=24), _processor, _rows, tokens=_tokens
    ),
}
