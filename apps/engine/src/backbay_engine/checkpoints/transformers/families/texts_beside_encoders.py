"""The texts of models that see, whose encoders lie in projector files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...arrays import LazyArray
from ..changes import INTERLEAVED
from ..config_json import Keys, Settings
from ..family_mapping import Families, Family
from .decoders import LLAMA, rotary_length
from .experts import GATE_AND_UP, QWEN_NAMES, qwen_moe_keys

TEXTS: Final[Mapping[str, dict[str, Any]]] = {
    "llama": {"intermediate_size": 11008, "max_position_embeddings": 2048, "vocab_size": 32000},
    "mistral": {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "vocab_size": 32000,
    },
    "qwen2": {
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "vocab_size": 151936,
    },
}
SHARED: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}
QWEN2: Final = Family("qwen2")
DEEP: Final = {"deepstack_visual_indexes": [8, 16, 24]}


def with_text_defaults(settings: Settings) -> Settings:
    """The configuration with what transformers takes for values that a text beside an encoder leaves out."""
    kind = settings.section("text_config").text("model_type", default="llama")
    return settings.over(SHARED | TEXTS.get(kind, {}))


def text_beside_encoder(families: Mapping[str, Family]) -> Callable[[Settings], Family]:
    """The family of the text by its kind, which the configuration decides."""
    made = {kind: replace(family, usual=with_text_defaults) for kind, family in families.items()}

    def choose(settings: Settings) -> Family:
        return made[chosen(settings.section("text_config"), "model_type", tuple(made), default="llama")]

    return choose


def chosen(settings: Settings, name: str, known: tuple[str, ...], default: str) -> str:
    """A text of the configuration that is one of those known; ModelFileError names them."""
    found = settings.text(name, default=default)
    if found not in known:
        raise settings.refuse(name, " or ".join(known))
    return found


def qwen3vl_keys(settings: Settings) -> Keys:
    listed = settings.section("vision_config", DEEP).wholes("deepstack_visual_indexes")
    return {"n_deepstack_layers": len(listed)}


def qwen3vl_moe_keys(settings: Settings) -> Keys:
    return {**qwen_moe_keys(settings), **qwen3vl_keys(settings)}


def gate_and_up(array: LazyArray, settings: Settings) -> LazyArray | Mapping[str, LazyArray] | None:
    """The matrices of all experts; published files have them transposed, those of newer versions of transformers do not."""
    return GATE_AND_UP(array if array.shape[-1] == settings.width else array.transposed(), settings)


def experts_down(array: LazyArray, settings: Settings) -> LazyArray:
    return array if array.shape[1] == settings.width else array.transposed()


QWEN3VLMOE = Family(
    "qwen3vlmoe",
    keys=qwen3vl_moe_keys,
    changes={r"experts\.gate_up_proj$": gate_and_up, r"experts\.down_proj$": experts_down},
    names=QWEN_NAMES,
)
LLAMAS = {"llama": LLAMA, "mistral": LLAMA}
MISTRAL3 = Family("mistral3", keys=rotary_length(), changes=INTERLEAVED)
FAMILIES: Families = {
    **dict.fromkeys(
        ("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"),
        text_beside_encoder({**LLAMAS, "qwen2": QWEN2}),
    ),
    "Mistral3ForConditionalGeneration": text_beside_encoder({"mistral": MISTRAL3}),
    **dict.fromkeys(
        ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"), text_beside_encoder(LLAMAS)
    ),
    **dict.fromkeys(
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), Family("qwen2vl")
    ),
    "Qwen3VLForConditionalGeneration": Family("qwen3vl", keys=qwen3vl_keys),
    "Qwen3VLMoeForConditionalGeneration": QWEN3VLMOE,
}
"""The texts, by the classes of transformers."""
