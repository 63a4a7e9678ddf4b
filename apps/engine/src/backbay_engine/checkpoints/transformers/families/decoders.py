"""Decoders with attention in every block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from backbay import ModelFileError

from ...arrays import LazyArray, concatenate, constant
from ...json_files import first_bytes, read_object
from ..changes import INTERLEAVED, halves, transposed
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Families, Family


def rotary_length(share: float = 1.0) -> Callable[[Settings], Keys]:
    """The key for how many numbers of a head rotate; a configuration may say another share."""

    def keys(settings: Settings) -> Keys:
        part = settings.rope.number("partial_rotary_factor", default=share)
        return {"rope.dimension_count": int(settings.head * part)}

    return keys


def llama3_factors(settings: Settings, beside: LazyArray) -> Arrays:
    """The factors by which Llama 3.1 slows down rotations for long contexts."""
    rope = settings.rope
    if rope.text("rope_type") != "llama3":
        return {}
    n = settings.head
    speeds = 1.0 / rope.number("rope_theta", default=10000.0) ** (np.arange(0, n, 2, dtype=np.float32) / n)
    factor, low = rope.number("factor", default=8.0), rope.number("low_freq_factor", default=1.0)
    high = rope.number("high_freq_factor", default=4.0)
    trained = rope.number("original_max_position_embeddings", default=8192)
    if not factor:
        raise rope.refuse("factor", "a number other than 0")
    waves = 2 * math.pi / speeds
    smooth = (trained / waves - low) / ((high - low) or 1)  # equal ones, as of Llama 4, leave nothing between
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < trained / high, 1, np.where(waves > trained / low, factor, between))
    return {"rope_freqs.weight": constant(factors.astype(np.float32), beside)}


MIXTRAL = {r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.": r"layers.\1.feed_forward.experts."}
LLAMA = Family("llama", keys=rotary_length(), changes=INTERLEAVED, names=MIXTRAL, further=llama3_factors)


def granite_keys(settings: Settings) -> Keys:
    scales = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    keys: Keys = {key: settings.maybe_number(name) or None for key, name in scales.items()}
    keys |= {
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.dimension_count": settings.width // settings.heads,
        "expert_shared_feed_forward_length": settings.maybe_whole("shared_intermediate_size") or None,
    }
    if "sliding_window" in settings and any(settings.windows()):
        keys |= window_keys(settings, settings.windows())
    return keys


def window_keys(settings: Settings, windows: list[bool]) -> Keys:
    """The keys of attention within a window, in these blocks."""
    return {
        "attention.sliding_window": settings.whole("sliding_window"),
        "attention.sliding_window_pattern": windows,
    }


GRANITE_EXPERTS = {
    **INTERLEAVED,
    r"block_sparse_moe\.input_linear": halves("mlp.experts.gate_proj", "mlp.experts.up_proj"),
    r"shared_mlp\.input_linear": halves("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
}
GRANITE_NAMES = {
    r"block_sparse_moe\.output_linear": "mlp.experts.down_proj",
    r"shared_mlp\.output_linear": "mlp.shared_expert.down_proj",
}


def olmo2_keys(settings: Settings) -> Keys:
    if "sliding_window" not in settings:
        return {}
    usual = [(index + 1) % 4 != 0 for index in range(settings.blocks)]
    return window_keys(settings, settings.windows() or usual)


def phi3_keys(settings: Settings) -> Keys:
    rope, context = settings.rope, settings.whole("max_position_embeddings")
    original = rope.whole("original_max_position_embeddings", default=context)
    part = rope.number("partial_rotary_factor", default=1.0)
    keys: Keys = {
        "rope.scaling.original_context_length": original,
        "rope.scaling.type": None,  # the factors say it all
        "rope.dimension_count": int(part * settings.width) // settings.heads,
        "attention.sliding_window": settings.whole("sliding_window", default=0),
    }
    if rope.numbers("long_factor"):
        scale = context / max(original, 1)
        kind = rope.text("rope_type")
        longrope = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
        yarn = 0.1 * math.log(scale) + 1.0 if scale > 1 else 1.0
        keys["rope.scaling.attn_factor"] = yarn if kind == "yarn" else longrope
    return keys


def phi3_factors(settings: Settings, beside: LazyArray) -> Arrays:
    rope, found = settings.rope, {}
    for kind in ("long", "short"):
        factors = np.array(rope.numbers(f"{kind}_factor"), np.float32)
        if factors.size:
            found[f"rope_factors_{kind}.weight"] = constant(factors, beside)
    return found


def cohere_keys(settings: Settings) -> Keys:
    return {
        "logit_scale": settings.number("logit_scale", default=0.0625),
        "rope.scaling.type": "none",
        "attention.key_length": None,
        "attention.value_length": None,
    }


def cohere2_keys(settings: Settings) -> Keys:
    return {
        "logit_scale": settings.number("logit_scale", default=0.0625),
        "attention.sliding_window": settings.whole("sliding_window"),
        "rope.dimension_count": int(settings.number("rotary_pct", default=1.0) * settings.head),
        "rope.scaling.type": "none",
    }


def gpt2_keys(settings: Settings) -> Keys:
    return {
        "context_length": settings.whole("n_positions", "n_ctx"),
        "feed_forward_length": settings.whole("n_inner", default=4 * settings.width),
        "attention.layer_norm_epsilon": settings.number("layer_norm_epsilon", default=1e-5),
    }


def starcoder_keys(settings: Settings) -> Keys:
    return gpt2_keys(settings) | {
        "attention.head_count_kv": 1 if settings.flag("multi_query", True) else None
    }


def split_qkv(array: LazyArray, settings: Settings) -> Mapping[str, LazyArray]:
    """Queries, keys and values in one matrix."""
    q, kv = settings.heads * settings.head, settings.kv_heads * settings.head
    query, key, value = array.split(q, kv, kv)
    return {"q_proj": query, "k_proj": key, "v_proj": value}


RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, '
    "retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
ANSWERS = "yes", "no"  # whose logits are the scores


def qwen3(settings: Settings) -> Family:
    """Qwen 3; a reranker is told by its name alone, as its configuration is that of a decoder."""
    names = settings.text("_name_or_path"), settings.name
    page = settings.folder / "README.md"
    head = first_bytes(page, 4096).decode("utf-8", "replace") if page.is_file() else ""
    if not any("qwen3-reranker" in text.lower() for text in (*names, head)):
        return Family("qwen3")
    return Family("qwen3", keys=reranker_keys, prepare=answer_rows)


def reranker_keys(_settings: Settings) -> Keys:
    return {
        "pooling_type": 4,
        "classifier.output_labels": list(ANSWERS),
        "/tokenizer.chat_template.rerank": RERANKER,
    }


def answer_rows(arrays: Arrays, settings: Settings) -> Arrays:
    """Only two rows of the head, those of the answers."""
    model = read_object(settings.folder / "tokenizer.json").get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    found = dict(arrays)
    head = found.pop("lm_head.weight", None) or found["model.embed_tokens.weight"]
    given = [ids.get(word) for word in ANSWERS] if isinstance(ids, dict) else []
    rows = [row for row in given if isinstance(row, int) and 0 <= row < head.shape[0]]
    if len(rows) != len(ANSWERS):
        raise ModelFileError(settings.folder / "tokenizer.json", None, "the tokens 'yes' and 'no'", "none")
    found["cls.output.weight"] = concatenate([head.part(row, row + 1) for row in rows])
    return found


GPT2 = {r"\.(c_attn|c_proj|c_fc)\.weight$": transposed}
FAMILIES: Families = {
    **dict.fromkeys(
        ("LlamaForCausalLM", "LlamaModel", "MistralForCausalLM", "MistralModel", "MixtralForCausalLM"), LLAMA
    ),
    **dict.fromkeys(("Qwen2ForCausalLM", "Qwen2Model"), Family("qwen2")),
    **dict.fromkeys(("Qwen3ForCausalLM", "Qwen3Model"), qwen3),
    "SmolLM3ForCausalLM": Family(
        "smollm3", keys=rotary_length(), changes=INTERLEAVED, further=llama3_factors
    ),
    **dict.fromkeys(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), Family("olmo2", keys=olmo2_keys)),
    "GraniteForCausalLM": Family("granite", keys=granite_keys, changes=INTERLEAVED),
    **dict.fromkeys(
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        Family("granitemoe", keys=granite_keys, changes=GRANITE_EXPERTS, names=GRANITE_NAMES),
    ),
    "Phi3ForCausalLM": Family("phi3", keys=phi3_keys, further=phi3_factors),
    "CohereForCausalLM": Family("command-r", keys=cohere_keys),
    "Cohere2ForCausalLM": Family("cohere2", keys=cohere2_keys),
    "Glm4ForCausalLM": Family("glm4", keys=rotary_length(0.5)),
    "GPT2LMHeadModel": Family("gpt2", keys=gpt2_keys, changes=GPT2),
    "GPTBigCodeForCausalLM": Family("starcoder", keys=starcoder_keys),
    "Starcoder2ForCausalLM": Family("starcoder2"),
}
