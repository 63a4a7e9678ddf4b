"""Google's Gemma models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from statistics import NormalDist

import numpy as np

from ...arrays import LazyArray, constant, stack
from ...json_files import read_object
from ..changes import left_out, plus_one
from ..config_json import WIDEST_HEAD, Keys, Settings
from ..family_mapping import Arrays, Change, Family


def gemma_keys(settings: Settings) -> Keys:
    """Some configurations leave out what transformers takes as a default."""
    return {
        "attention.head_count": settings.whole("num_attention_heads", default=8),
        "attention.head_count_kv": settings.whole("num_key_value_heads", default=4),
        "attention.layer_norm_rms_epsilon": settings.number("rms_norm_eps", default=1e-6),
        "attention.key_length": settings.whole("head_dim", default=256),
        "attention.value_length": settings.whole("head_dim", default=256),
        "context_length": settings.whole("max_position_embeddings", default=131072),
    }


def gemma2_keys(settings: Settings) -> Keys:
    return gemma_keys(settings) | {
        "context_length": settings.whole("max_position_embeddings", default=8192),
        "attn_logit_softcapping": settings.number("attn_logit_softcapping", default=50.0),
        "final_logit_softcapping": settings.number("final_logit_softcapping", default=30.0),
        "attention.sliding_window": settings.whole("sliding_window", default=4096),
        "rope.freq_base": None,
    }


def gemma3_keys(settings: Settings) -> Keys:
    windows = settings.maybe_whole("sliding_window_pattern") != 1
    return gemma_keys(settings) | {
        "final_logit_softcapping": settings.maybe_number("final_logit_softcapping") or None,
        "attention.sliding_window": settings.whole("sliding_window") if windows else None,
        "rope.freq_base": settings.rope.number("rope_theta", default=1_000_000.0),
    }


def gemma3n_keys(settings: Settings) -> Keys:
    sparse = [NormalDist().inv_cdf(share) if share else -inf for share in _shares(settings)]
    return gemma3_keys(settings) | {
        "altup.active_idx": settings.whole("altup_active_idx", default=0),
        "altup.num_inputs": settings.whole("altup_num_inputs", default=4),
        "embedding_length_per_layer_input": settings.whole("hidden_size_per_layer_input"),
        "attention.shared_kv_layers": settings.whole("num_kv_shared_layers"),
        "activation_sparsity_scale": sparse,
        "attention.sliding_window_pattern": settings.windows(),
    }


def _shares(settings: Settings) -> list[float]:
    name = "activation_sparsity_pattern"
    shares = settings.numbers(name)
    if any(not 0 <= share < 1 for share in shares):
        raise settings.refuse(name, "numbers from 0 to below 1")
    return shares


def _without_window(settings: Settings, own: str, name: str) -> int | None:
    """A number of the blocks without a window, by a name of its own, or by the configurations of single blocks."""
    blocks = settings.section("per_layer_config")
    kinds = enumerate(settings.texts("layer_types"))
    single = (blocks.section(str(index)) for index, kind in kinds if kind == "full_attention")
    found = settings.maybe_whole(own)
    return found or next((block.whole(name) for block in single if name in block), None)


def gemma4_keys(settings: Settings) -> Keys:
    windows, shared = settings.windows(), settings.whole("num_kv_shared_layers", default=0)
    head = settings.whole("head_dim")
    whole_head = _without_window(settings, "global_head_dim", "head_dim") or head
    inner, doubled = settings.whole("intermediate_size"), settings.flag("use_double_wide_mlp")
    first = settings.blocks - shared
    experts = settings.maybe_whole("expert_intermediate_size", "moe_intermediate_size")
    keys = gemma3_keys(settings) | {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": settings.whole("hidden_size_per_layer_input", default=0),
        "attention.sliding_window_pattern": windows,
        "attention.key_length": whole_head,
        "attention.value_length": whole_head,
        "attention.key_length_swa": head,
        "attention.value_length_swa": head,
        "expert_feed_forward_length": experts,
        "rope.dimension_count": whole_head,
        "rope.dimension_count_swa": head,
    }
    if doubled:
        keys["feed_forward_length"] = [inner * (1 + (index >= first)) for index in range(settings.blocks)]
    behind = _without_window(settings, "num_global_key_value_heads", "num_key_value_heads")
    if behind is not None:
        keys["attention.head_count_kv"] = [settings.kv_heads if window else behind for window in windows]
    return keys


def gemma4_factors(settings: Settings, beside: LazyArray) -> Arrays:
    """Pairs that do not rotate have an endless wave; they stand between those that do."""
    head = _without_window(settings, "global_head_dim", "head_dim") or settings.whole("head_dim")
    if not 0 < head <= WIDEST_HEAD:
        raise settings.refuse("head_dim", f"a number from 1 to {WIDEST_HEAD}")
    turning = int(head * settings.rope.number("partial_rotary_factor", default=0.25) / 2)
    factors = [1.0] * turning + [1e30] * (head // 2 - turning)
    return {"rope_freqs.weight": constant(np.array(factors, np.float32), beside)}


def word_embeddings(array: LazyArray, settings: Settings) -> LazyArray:
    """Without rows behind the last token of tokenizer.json, if there are any."""
    tokens = read_object(settings.folder / "tokenizer.json", required=False)
    model, added = tokens.get("model"), tokens.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not isinstance(added, list):
        return array
    ids = [token.get("id") for token in added if isinstance(token, dict)]
    own = len(vocabulary) + sum(isinstance(id, int) and id >= len(vocabulary) for id in ids)
    return array.part(0, own) if own < array.shape[0] else array


def stack_altup(arrays: Arrays, _settings: Settings) -> Arrays:
    """Gemma 3n's projections of the further streams, stacked."""
    found = dict(arrays)
    for kind in ("altup_projections", "altup_unembed_projections"):
        parts = [found.pop(f"model.{kind}.{index}.weight", None) for index in range(3)]
        present = [part for part in parts if part is not None]
        if len(present) == 3:
            found[f"model.{kind}.weight"] = stack(present)
    return found


HEAD: Mapping[str, Change] = {r"^lm_head\.weight$": left_out}  # the embeddings serve as head
NORMS: Mapping[str, Change] = {r"norm\.weight$": plus_one}
WORDS: Mapping[str, Change] = {r"embed_tokens\.weight$": word_embeddings}
GEMMA3 = Family("gemma3", keys=gemma3_keys, changes={**HEAD, **WORDS, **NORMS})
_SCALES = {r"_scale$": "_scale.weight"}
GEMMA3N = Family("gemma3n", keys=gemma3n_keys, changes=HEAD, names=_SCALES, prepare=stack_altup)
GEMMA4 = Family(
    "gemma4",
    keys=gemma4_keys,
    changes=HEAD,
    further=gemma4_factors,
    names={
        r"layer_scalar$": "layer_scalar.weight",
        r"(\.experts\.[a-z_]+)$": r"\1.weight",
        r"^model\.layers\.(\d+)\.router\.scale$": r"blk.\1.ffn_gate_inp.scale",
        r"^model\.layers\.(\d+)\.router\.per_expert_scale$": r"blk.\1.ffn_down_exps.scale",
    },
)
FAMILIES = {
    "Gemma2ForCausalLM": Family("gemma2", keys=gemma2_keys, changes={**HEAD, **NORMS}),
    **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), GEMMA3),
    "Gemma3TextModel": replace(GEMMA3, architecture="gemma-embedding", prefix="model."),
    **dict.fromkeys(("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), GEMMA3N),
    **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), GEMMA4),
}
