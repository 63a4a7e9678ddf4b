"""Models that hear by Whisper's encoder, which lies in a projector file: their texts, and these encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...arrays import LazyArray
from ..config_json import Keys, Settings
from ..family_mapping import Families, Family
from .decoders import LLAMA
from .texts_beside_encoders import QWEN2, text_beside_encoder, with_text_defaults
from .whisper import EPSILON, NAMES

EAR: Final = "audio_config"
WHISPER: Final = {"max_source_positions": 1500, "num_mel_bins": 80}


def sound_keys(kind: str, stack: Callable[[Settings], int | None]) -> Callable[[Settings], Keys]:
    """The keys of an encoder; `stack` gives the positions that become one row, where the file has to say it."""

    def keys(settings: Settings) -> Keys:
        ear = settings.section(EAR, WHISPER)
        return {
            "has_audio_encoder": True,
            "projector_type": kind,
            "audio.projection_dim": settings.width,
            "audio.embedding_length": ear.whole("d_model", "hidden_size"),
            "audio.feed_forward_length": ear.whole("encoder_ffn_dim", "intermediate_size"),
            "audio.block_count": ear.whole("encoder_layers", "num_hidden_layers"),
            "audio.attention.head_count": ear.whole("encoder_attention_heads", "num_attention_heads"),
            "audio.attention.layer_norm_epsilon": EPSILON,
            "audio.num_mel_bins": ear.whole("num_mel_bins"),
            "audio.projector.stack_factor": stack(settings),
        }

    return keys


def voxtral_stack(settings: Settings) -> int:
    ear = settings.section(EAR)
    width, inner = ear.whole("hidden_size", "d_model"), ear.whole("intermediate_size", "encoder_ffn_dim")
    if width < 1 or inner % width:
        raise ear.refuse("intermediate_size", f"a multiple of the width {width}")
    return inner // width


def column(array: LazyArray, _settings: Settings) -> LazyArray:
    """The bias of a convolution, as llama.cpp adds it to rows of frames."""
    return array.reshape(array.shape[0], 1)


HEARD: Final = {
    r"^model\.": "",
    r"^audio_tower\.": "encoder.",
    r"^multi_modal_projector\.linear\.": "mm.a.fc.",
    r"^multi_modal_projector\.linear_(\d)\.": r"mm.a.mlp.\1.",
    r"^multi_modal_projector\.ln_(pre|mid)\.": r"mm.a.norm_\1.",
    **NAMES,
}
VOXTRAL = Family(
    "clip",
    keys=sound_keys("voxtral", voxtral_stack),
    changes={r"\.conv[12]\.bias$": column},
    names=HEARD,
    usual=with_text_defaults,
    tensors=r"^(model\.)?(audio_tower|multi_modal_projector)\.",
)
QWEN2A = replace(VOXTRAL, keys=sound_keys("qwen2a", lambda _: None))
ULTRAVOX = replace(VOXTRAL, keys=sound_keys("ultravox", lambda settings: settings.whole("stack_factor")))
FAMILIES: Families = {
    "VoxtralForConditionalGeneration": text_beside_encoder({"llama": LLAMA}),
    "Qwen2AudioForConditionalGeneration": text_beside_encoder({"qwen2": QWEN2}),
}
PROJECTORS: Families = {
    "VoxtralForConditionalGeneration": VOXTRAL,
    "Qwen2AudioForConditionalGeneration": QWEN2A,
    "UltravoxModel": ULTRAVOX,
}
