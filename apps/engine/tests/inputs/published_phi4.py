"""Phi-4-multimodal as Microsoft publishes it, made of a folder of transformers: names, configuration, adapters among the tensors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_folders import Array, write_folder
from tokenizers import Tokenizer

NAMES = {
    r"(layers\.\d+\.(self_attn\.(qkv|o)|mlp\.(gate_up|down))_proj)\.weight$": r"\1.base_layer.weight",
    r"(feed_forward_\w+)\.gate_up_proj": r"\1.net.0.linear",
    r"(feed_forward_\w+)\.down_proj": r"\1.net.2",
    r"(encoders\.\d+\.self_attn)\.([qkv])_proj": r"\1.linear_\2",
    r"(encoders\.\d+\.self_attn)\.o_proj": r"\1.linear_out",
    r"img_projection_up": "img_projection.0",
    r"img_projection_down": "img_projection.2",
    r"global_img_feature_extensor": "glb_GN",
    r"sub_img_feature_extensor": "sub_GN",
    r"up_proj_for_speech": "audio_projection.speech.0",
    r"down_proj_for_speech": "audio_projection.speech.2",
    r"up_proj_for_vision_speech": "audio_projection.vision.0",
    r"down_proj_for_vision_speech": "audio_projection.vision.2",
}
"""Microsoft's names by those of transformers: the other way round than transformers' script converts them."""
OF_PEFT = re.compile(r"base_model\.model\.(.+\.lora_[AB])\.weight")
TOKENS = {"<|image|>": "<|endoftext10|>", "<|audio|>": "<|endoftext11|>"}
PUBLISHED = {  # values that transformers does not keep
    "batch_norm": False,
    "bias_in_glu": True,
    "causal": True,
    "cnn_layer_norm": True,
    "encoder_embedding_config": {"input_size": 80},
    "ext_pw_kernel_size": 1,
    "input_layer": "nemo_conv",
}


def publish(folder: Path, target: Path) -> Path:
    """Write the model of a folder in Microsoft's layout, in two files, with the adapters `vision` and `speech` among its tensors."""
    tensors = {_published(name): array for name, array in stored_arrays(folder / "model.safetensors").items()}
    config = published_config(json.loads((folder / "config.json").read_text()))
    for name in ("vision", "speech"):
        adapter = folder / f"{name}-lora"
        for own, array in stored_arrays(adapter / "adapter_model.safetensors").items():
            match = OF_PEFT.fullmatch(own)
            assert match is not None, own
            tensors[f"{match[1]}.{name}.weight"] = array
        stated = json.loads((adapter / "adapter_config.json").read_text())
        config[f"{name}_lora"] = {
            "r": stated["r"],
            "lora_alpha": stated["lora_alpha"],
            "dp": 0.0,
            "layer": "(layers.*)",
        }
    text = (folder / "tokenizer.json").read_text()
    for name, token in TOKENS.items():
        text = text.replace(name, token)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    write_folder(target, config, tensors, files=2, tokenizer=Tokenizer.from_str(text), tokenizer_config=said)
    processor = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    kept = {"dynamic_hd": processor["dynamic_hd"], "audio_compression_rate": 8}
    (target / "preprocessor_config.json").write_text(json.dumps(kept))
    return target


def published_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with Microsoft's names; the sizes of the encoder of pictures, which Microsoft's code fixes, stay."""
    ear, eye, rope = (config.pop(name) for name in ("audio_config", "vision_config", "rope_parameters"))
    renamed = {
        "attention_dim": ear["hidden_size"],
        "attention_heads": ear["num_attention_heads"],
        "linear_units": ear["intermediate_size"],
        "nemo_conv_settings": {"conv_channels": ear["nemo_conv_channels"]},
        "relative_attention_bias_args": {"type": "t5", "t5_bias_max_distance": ear["bias_max_distance"]},
    }
    same = ("activation", "chunk_size", "conv_activation", "conv_glu_type", "depthwise_multiplier")
    same += ("input_size", "kernel_size", "left_chunk", "num_blocks", "time_reduction")
    sound = {**PUBLISHED, **{name: ear[name] for name in same}, **renamed}
    pictures = {"crop_size": eye.pop("crop_size"), "hd_transform_order": "sub_glb", "use_hd_transform": True}
    return {
        **config,
        "architectures": ["Phi4MMForCausalLM"],
        "model_type": "phi4mm",
        "audio_processor": {"name": "cascades", "config": sound},
        "embd_layer": {
            "embedding_cls": "image_audio",
            "image_embd_layer": {**pictures, "embedding_cls": "tune_image", "projection_cls": "mlp"},
            "audio_embd_layer": {"compression_rate": 8, "downsample_rate": 1, "embedding_cls": "audio"},
        },
        "vision_config": eye,
        "rope_scaling": {
            "type": rope["rope_type"],
            **{name: rope[name] for name in ("long_factor", "short_factor")},
        },
        "rope_theta": rope["rope_theta"],
        "partial_rotary_factor": rope["partial_rotary_factor"],
    }


def _published(name: str) -> str:
    for pattern, replacement in NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name


def stored_arrays(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file of f32."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    rows = {name: row for name, row in json.loads(raw[8:end]).items() if name != "__metadata__"}
    return {
        name: np.frombuffer(raw, np.float32, (row["data_offsets"][1] - row["data_offsets"][0]) // 4, end + row["data_offsets"][0])
        .reshape(row["shape"])
        for name, row in rows.items()
    }  # fmt: skip
