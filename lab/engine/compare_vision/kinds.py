"""Small random models that see, as transformers makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import transformers

WORDS = ["<unk>", "<s>", "</s>", "<pad>"]
MARKS = [
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<image>", "<|image|>"),
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"),
    *("<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>", "<row_2_col_1>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("<slice>", "</slice>", "</image>", "<image_id>", "</image_id>"),
    *("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|patch|>"),
]
LETTERS = ["\n", "\n\n", *(chr(n) for n in range(33, 127)), "▁", "▁a", "▁b"]
VOCABULARY = [*WORDS, *MARKS, *LETTERS]
ID = {word: id for id, word in enumerate(VOCABULARY)}
SIDE, PATCH = 56, 14
LEVELS = 2

TEXT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
GRID = {
    "depth": VISION["num_hidden_layers"],
    "hidden_size": VISION["hidden_size"],
    "intermediate_size": VISION["intermediate_size"],
    "num_heads": VISION["num_attention_heads"],
    "out_hidden_size": TEXT["hidden_size"],
}
"""The encoders of Qwen."""
QWEN_IDS = {
    "image_token_id": ID["<|image_pad|>"],
    "video_token_id": ID["<|video_pad|>"],
    "vision_start_token_id": ID["<|vision_start|>"],
    "vision_end_token_id": ID["<|vision_end|>"],
}
PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]


@dataclass(frozen=True, eq=False)
class Kind:
    """A model and its processor of images.

    features   the rows of one picture, (rows, width)
    tokens     what the processor of texts makes of a picture's placeholder, from the results of the processor of images
    fitting    height and width of a picture that needs no resizing
    """

    make: Callable[[], Any]
    processor: Callable[[], Any]
    features: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]
    seed: int = 0
    tokens: Callable[[Any], list[int]] | None = None
    fitting: tuple[int, int] = (SIDE, SIDE)

    @cached_property
    def model(self) -> Any:
        torch.manual_seed(self.seed)
        model = self.make().eval().float()
        with torch.no_grad():
            for name, weight in (*model.named_parameters(), *model.named_buffers()):
                if weight.is_floating_point() and "inv_freq" not in name and "embed_scale" not in name:
                    _fill(name, weight)
        return model

    @cached_property
    def images(self) -> Any:
        return self.processor()


def _fill(name: str, weight: torch.Tensor) -> None:
    """Values that f16 holds exactly, as converters store some tensors in f16 always, and few, so that files pack well."""
    numbers = torch.randint(-LEVELS, LEVELS + 1, weight.shape).float() / LEVELS
    if "gate" in name and weight.numel() <= 8:
        weight.copy_(numbers)
    elif weight.dim() == 1:
        weight.add_(numbers * 0.25)
    elif "embed" in name:
        weight.copy_(numbers / 2)
    else:
        inputs = weight.shape[1] if weight.dim() == 3 else weight[0].numel()
        weight.copy_(numbers * 2.0 ** -round(0.5 * torch.log2(torch.tensor(inputs)).item() - 0.5))


def _gemma3() -> Any:
    text = {**TEXT, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=ID["<start_of_image>"],
        eoi_token_index=ID["<end_of_image>"],
        image_token_index=ID["<image_soft_token>"],
        image_token_id=ID["<image_soft_token>"],
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    return transformers.Gemma3ForConditionalGeneration(config)


def llava(side: int = SIDE) -> Any:
    """For pictures of this side."""
    eye = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32, "image_size": side}
    config = transformers.LlavaConfig(
        vision_config=eye,
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=ID["<image>"],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    return transformers.LlavaForConditionalGeneration(config)


def _llava_next() -> Any:
    config = transformers.LlavaNextConfig(
        vision_config={**VISION, "model_type": "clip_vision_model", "projection_dim": 32},
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=ID["<image>"],
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    return transformers.LlavaNextForConditionalGeneration(config)


def _qwen25vl() -> Any:
    rope = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_scaling": rope, "rope_parameters": rope},
        vision_config={**GRID, "patch_size": PATCH, "window_size": 112, "fullatt_block_indexes": [1, 3]},
        **QWEN_IDS,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def _qwen2vl() -> Any:
    rope = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0}
    width = VISION["hidden_size"]
    eye = {
        name: value for name, value in GRID.items() if name not in ("intermediate_size", "out_hidden_size")
    }
    eye |= {"embed_dim": width, "hidden_size": TEXT["hidden_size"], "mlp_ratio": 2, "patch_size": PATCH}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_scaling": rope, "rope_parameters": rope}, vision_config=eye, **QWEN_IDS
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def _mllama() -> Any:
    vision = {name: value for name, value in VISION.items() if name != "num_attention_heads"}
    config = transformers.MllamaConfig(
        vision_config={
            **vision,
            "attention_heads": VISION["num_attention_heads"],
            "num_global_layers": 2,
            "intermediate_layers_indices": [1, 3],
            "vision_output_dim": 3 * VISION["hidden_size"],
            "max_num_tiles": 4,
            "supported_aspect_ratios": [
                *([1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]),
            ],
        },
        text_config={**TEXT, "num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
        image_token_index=ID["<|image|>"],
    )
    return transformers.MllamaForConditionalGeneration(config)


def pooled(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    found = model.model.get_image_features(**inputs)
    found = getattr(found, "pooler_output", found)
    return found[0] if isinstance(found, (tuple, list)) or found.dim() == 3 else found


def _crossing(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    named = {name: inputs[name] for name in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}
    states = model.model.vision_model(**named).last_hidden_state
    projected = model.model.multi_modal_projector(states)
    return projected.reshape(-1, projected.shape[-1])


def middle_squares(side: int = SIDE) -> Any:
    """The processor of CLIP."""
    square = {"height": side, "width": side}
    return transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=square)


MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SQUARE = {"height": SIDE, "width": SIDE}
KINDS = {
    "gemma3": Kind(
        _gemma3, lambda: transformers.Gemma3ImageProcessor(size=SQUARE, image_seq_length=4), pooled
    ),
    "llava": Kind(llava, middle_squares, pooled),
    "llava16": Kind(
        _llava_next,
        lambda: transformers.LlavaNextImageProcessor(
            size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS
        ),
        pooled,
    ),
    **{
        name: Kind(
            make,
            lambda: transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 400),
            pooled,
            fitting=(84, 112),  # of at least 8 rows, which llama.cpp makes always
        )
        for name, make in (("qwen2vl", _qwen2vl), ("qwen25vl", _qwen25vl))
    },
    "mllama": Kind(
        _mllama,
        lambda: transformers.MllamaImageProcessor(
            size=SQUARE, max_image_tiles=4, image_mean=MEAN, image_std=STD
        ),
        _crossing,
    ),
}
