"""Phi-4-multimodal: text, an encoder of pictures and one of sound in one file, since llama.cpp knows no such model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ...arrays import LazyArray
from ..changes import halves, left_out, squeezed
from ..config_json import Keys, Settings
from ..family_mapping import Families, Family
from .decoders import phi3_factors, phi3_keys
from .sound import EAR
from .texts_beside_encoders import chosen
from .vision import EYE, SIGLIP, block_count, picture_keys, processor_of
from .whisper import EPSILON

TEXT: Final[dict[str, Any]] = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "vocab_size": 200064,
}
"""The values that transformers takes where a configuration states none; so are those of the others."""
PICTURES: Final = SIGLIP | {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
}
SOUND: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_blocks": 24,
    "num_attention_heads": 16,
    "input_size": 80,
}
FIXED: Final[dict[str, Any]] = {
    "activation": "swish",
    "conv_activation": "swish",
    "conv_glu_type": "swish",
    "nemo_activation": "relu",
    "chunk_size": -1,
    "bias_symmetric": False,
    "depthwise_multiplier": 1,
    "downsample_rate": 1,
    "time_reduction": 8,
    "input_layer": "nemo_conv",
    "causal": True,
    "batch_norm": False,
    "bias_in_glu": True,
    "ext_pw_kernel_size": 1,
}
"""Settings of the encoder of sound that all published models share."""
MICROSOFT: Final = "Phi4MMForCausalLM"
"""The class of the published model, whose settings and tensors have names of its own."""
EAR_SETTINGS: Final = {
    "attention_dim": "hidden_size",
    "attention_heads": "num_attention_heads",
    "linear_units": "intermediate_size",
}
"""Names of transformers by those of the published configuration."""
PUBLISHED_NAMES: Final = {
    r"\.base_layer\.": ".",
    r"(\.feed_forward_\w+)\.net\.2\.": r"\1.down_proj.",
    r"\.self_attn\.linear_([qkv])\.": r".self_attn.\1_proj.",
    r"\.self_attn\.linear_out\.": ".self_attn.o_proj.",
    r"\.img_projection\.0\.": ".img_projection_up.",
    r"\.img_projection\.2\.": ".img_projection_down.",
    r"\.glb_GN$": ".global_img_feature_extensor",
    r"\.sub_GN$": ".sub_img_feature_extensor",
    r"\.audio_projection\.speech\.0\.": ".up_proj_for_speech.",
    r"\.audio_projection\.speech\.2\.": ".down_proj_for_speech.",
    r"\.audio_projection\.vision\.0\.": ".up_proj_for_vision_speech.",
    r"\.audio_projection\.vision\.2\.": ".down_proj_for_vision_speech.",
}
EAR_NAMES: Final = {
    r"^model\.embed_tokens_extend\.audio_embed\.": "",
    r"^encoder\.encoder_embedding\.global_mean$": "a.mel_mean.weight",
    r"^encoder\.encoder_embedding\.global_invstd$": "a.mel_scale.weight",
    r"^encoder\.embed\.conv\.": "a.conv2d.",
    r"^encoder\.embed\.out\.": "a.conv_out.",
    r"^encoder\.relative_attention_bias_layer\.bias_values\.": "a.relative_bias.",
    r"^encoder\.encoders\.": "a.blk.",
    r"\.feed_forward_in\.layer_norm\.": ".ffn_norm.",
    r"\.feed_forward_in\.(\w+)_proj\.": r".ffn_\1.",
    r"\.feed_forward_out\.layer_norm\.": ".ffn_norm_1.",
    r"\.feed_forward_out\.(\w+)_proj\.": r".ffn_\1_1.",
    r"^(a\.blk\.\d+)\.self_attn\.([qkv])_proj\.": r"\1.attn_\2.",
    r"^(a\.blk\.\d+)\.self_attn\.o_proj\.": r"\1.attn_out.",
    r"\.layer_norm_att\.": ".ln1.",
    r"\.conv\.layer_norm\.": ".norm_conv.",
    r"^(a\.blk\.\d+)\.layer_norm\.": r"\1.ln2.",
    r"\.conv\.glu\.ext_pw_conv_1d\.": ".conv_pw1.",
    r"\.conv\.glu\.b1$": ".conv_value.bias",
    r"\.conv\.glu\.b2$": ".conv_gate.bias",
    r"\.conv\.dw_sep_conv_1d\.dw_conv\.": ".conv_dw.",
    r"\.conv\.dw_sep_conv_1d\.pw_conv\.": ".conv_pw2.",
    r"\.conv\.ext_pw_conv_1d\.": ".conv_pw3.",
    r"^(up|down)_proj_for_speech\.": r"mm.a.speech.\1.",
    r"^(up|down)_proj_for_vision_speech\.": r"mm.a.beside_picture.\1.",
}
EYE_NAMES: Final = {
    r"^model\.embed_tokens_extend\.image_embed\.": "",
    r"^img_processor\.embeddings\.patch_embedding\.": "v.patch_embd.",
    r"^img_processor\.embeddings\.position_embedding\.": "v.position_embd.",
    r"^img_processor\.encoder\.layers\.": "v.blk.",
    r"^(v\.blk\.\d+)\.self_attn\.([qkv])_proj\.": r"\1.attn_\2.",
    r"^(v\.blk\.\d+)\.self_attn\.out_proj\.": r"\1.attn_out.",
    r"^(v\.blk\.\d+)\.layer_norm(\d)\.": r"\1.ln\2.",
    r"^(v\.blk\.\d+)\.mlp\.fc1\.": r"\1.ffn_up.",
    r"^(v\.blk\.\d+)\.mlp\.fc2\.": r"\1.ffn_down.",
    r"^img_projection_(up|down)\.": r"mm.\1.",
    r"^sub_img_feature_extensor$": "mm.line_end.weight",
    r"^global_img_feature_extensor$": "mm.separator.weight",
}


def flat(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.regrouped(max(array.shape))


def with_defaults(settings: Settings) -> Settings:
    published = settings.architecture == MICROSOFT
    return (as_transformers(settings) if published else settings).over(TEXT)


def as_transformers(settings: Settings) -> Settings:
    """The published configuration with transformers' names; it has no sizes of the encoder of pictures."""
    inputs, given = settings.section("embd_layer"), settings.section("audio_processor").section("config")
    bias, pictures = given.section("relative_attention_bias_args"), inputs.section("image_embd_layer")
    ear = {EAR_SETTINGS.get(name, name): value for name, value in given.values.items()}
    ear["bias_symmetric"] = bias.flag("t5_bias_symmetric")
    ear["downsample_rate"] = inputs.section("audio_embd_layer").whole("downsample_rate", default=1)
    eye = {"crop_size": pictures.whole("crop_size", default=448), **settings.section(EYE).values}
    return replace(settings, values=settings.values | {EAR: ear, EYE: eye})


def eye_blocks(eye: Settings) -> int:
    """The blocks up to the one whose output becomes rows; a negative number counts from the last output."""
    count, layer = block_count(eye), eye.whole("feature_layer", default=-2)
    blocks = count + 1 + layer if layer < 0 else layer
    if not 1 <= blocks <= count:
        raise eye.refuse("feature_layer", f"an output of the {count} blocks")
    return blocks


def phi4_keys(settings: Settings) -> Keys:
    eye, processor = settings.section(EYE, PICTURES), processor_of(settings)
    chosen(eye, "hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    if eye.whole("crop_size", default=448) != eye.whole("image_size"):
        raise eye.refuse("crop_size", f"the image_size {eye.whole('image_size')}")
    seeing = {key: value for key, value in picture_keys(settings, "", PICTURES).items() if "vision." in key}
    return {
        **phi3_keys(settings),
        **seeing,
        "vision.block_count": eye_blocks(eye),
        "vision.max_num_tiles": processor.whole("dynamic_hd", default=36),
        **sound_keys(settings.section(EAR, SOUND)),
    }


def sound_keys(ear: Settings) -> Keys:
    for name, value in FIXED.items():
        if ear.values.get(name, value) != value:
            raise ear.refuse(name, f"{value!r}, as the published model has it,")
    return {
        "audio.block_count": ear.over({"num_hidden_layers": ear.whole("num_blocks")}).blocks,
        "audio.embedding_length": ear.whole("hidden_size"),
        "audio.feed_forward_length": ear.whole("intermediate_size"),
        "audio.attention.head_count": ear.whole("num_attention_heads"),
        "audio.attention.layer_norm_epsilon": EPSILON,
        "audio.num_mel_bins": ear.whole("input_size"),
    }


PHI4: Final = Family(
    "phi4mm",
    keys=phi4_keys,
    changes={
        r"img_processor\.(head|post_layernorm)\.|\.lora_[AB]\.": left_out,
        r"(feed_forward_\w+\.)(?:gate_up_proj|net\.0\.linear)\.": halves(r"\1up_proj.", r"\1gate_proj."),
        r"ext_pw_conv_1d\.weight$|pw_conv\.weight$|embed\.conv\.[36]\.weight$|dw_conv\.weight$": squeezed,
        r"glu\.b[12]$|_feature_extensor$|_GN$": flat,
    },
    names={
        **PUBLISHED_NAMES,
        r"^model\.layers\.(\d+)\.self_attn\.qkv_proj\.": r"blk.\1.attn_qkv.",
        r"^model\.layers\.(\d+)\.mlp\.gate_up_proj\.": r"blk.\1.ffn_up.",
        **EYE_NAMES,
        **EAR_NAMES,
    },
    further=phi3_factors,
    usual=with_defaults,
    tensors=".",
)


def phi4(settings: Settings) -> Family:
    """The family without the blocks of the encoder of pictures behind the output that becomes rows."""
    eye = with_defaults(settings).section(EYE, PICTURES)
    unused = "|".join(str(block) for block in range(eye_blocks(eye), block_count(eye)))
    without = {rf"img_processor\.encoder\.layers\.({unused})\.": left_out} if unused else {}
    return replace(PHI4, changes={**without, **PHI4.changes})


FAMILIES: Families = dict.fromkeys(("Phi4MultimodalForCausalLM", MICROSOFT), phi4)
