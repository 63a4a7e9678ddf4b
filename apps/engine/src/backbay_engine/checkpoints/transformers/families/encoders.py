"""Encoders of texts, and encoders with decoders."""

from __future__ import annotations

from dataclasses import replace

from ...arrays import LazyArray
from ..changes import left_out
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Families, Family

UNUSED = {r"^((bert|roberta)\.)?(pooler\.dense|cls\.(predictions|seq_relationship)|lm_head)\.": left_out}
EPSILON = "layer_norm_eps", "layer_norm_epsilon"
NAMES = {
    r"^(bert|roberta|distilbert)\.": "",
    r"\.gamma$": ".weight",
    r"\.beta$": ".bias",
    r"^classifier\.(weight|bias)$": r"classifier.out_proj.\1",
}


def bert_keys(settings: Settings) -> Keys:
    return {
        "attention.causal": False,
        "attention.layer_norm_epsilon": settings.number(*EPSILON, default=1e-12),
        "tokenizer.ggml.token_type_count": None,
        "vocab_size": None,
    } | classifier_keys(settings)


def classifier_keys(settings: Settings) -> Keys:
    """The names of the classes, if the model classifies."""
    mode = settings.text("classifier_pooling")
    pooling: Keys = {"classifier.pooling_type": {"mean": 1, "cls": 2}.get(mode)}
    if not settings.architecture.endswith("ForSequenceClassification"):
        return pooling
    names = settings.section("id2label").values
    count = settings.whole("num_labels", default=len(names) or 2)
    found = [str(names.get(str(index), f"LABEL_{index}")) for index in range(min(count, 1 << 16))]
    return pooling | {"classifier.output_labels": found or None}


def first_position(settings: Settings) -> int:
    """The first position of RoBERTa's texts: behind the padding token's."""
    padding = settings.maybe_whole("pad_token_id")
    return 0 if padding is None else padding + 1


def roberta_keys(settings: Settings) -> Keys:
    context = settings.whole("max_position_embeddings") - first_position(settings)
    return bert_keys(settings) | {"context_length": context}


def used_positions(array: LazyArray, settings: Settings) -> LazyArray:
    return array.part(min(first_position(settings), array.shape[0]), array.shape[0])


ROBERTA = {r"^(roberta\.)?embeddings\.position_embeddings\.": used_positions, **UNUSED}
WITH_HEAD = {**NAMES, r"^classifier\.out_proj": "classifier.out_proj"}


def xlm_roberta(settings: Settings) -> Family:
    """XLM-RoBERTa; with adaptations, jina-embeddings-v3."""
    architecture = "jina-bert-v3" if "lora_adaptations" in settings else "bert"
    names = {r"\.parametrizations\.": ".", r"\.original$": "", **NAMES}
    changes = {r"\.0\.lora_[AB]$": left_out, **ROBERTA}
    return Family(architecture, keys=roberta_keys, changes=changes, names=names)


def nomic_keys(settings: Settings) -> Keys:
    positions = settings.whole("n_positions", "max_position_embeddings")
    trained = positions, settings.whole("max_trained_positions", default=2048)
    known = {(8192, 2048): 2048, (2048, 2048): 512}  # texts are longer in training than positions say
    return bert_keys(settings) | {
        "context_length": settings.whole("max_position_embeddings", default=known.get(trained, positions)),
        "moe_every_n_layers": settings.maybe_whole("moe_every_n_layers") or None,
        "expert_used_count": settings.maybe_whole("moe_top_k"),
        "feed_forward_length": settings.whole("n_inner", "intermediate_size"),
        "attention.head_count": settings.heads,
    }


def nomic_experts(array: LazyArray, settings: Settings) -> LazyArray:
    count = settings.whole("num_experts", "num_local_experts")
    return array.regrouped(count, settings.whole("n_inner"), settings.width)


def nomic_down(array: LazyArray, settings: Settings) -> LazyArray:
    return nomic_experts(array, settings).transposed()


NOMIC = {r"mlp\.experts\.bias": left_out, r"experts\.mlp\.w1$": nomic_experts}
NOMIC |= {r"experts\.mlp\.w2$": nomic_down}


def nomic_bert(settings: Settings) -> Family:
    """nomic-bert, or with experts in some blocks."""
    architecture = "nomic-bert-moe" if settings.maybe_whole("moe_every_n_layers") else "nomic-bert"
    names = {**NAMES, r"(experts\.mlp\.w[12])$": r"\1.weight"}
    return Family(architecture, keys=nomic_keys, changes={**NOMIC, **UNUSED}, names=names)


def modern_bert_keys(settings: Settings) -> Keys:
    every = settings.maybe_whole("global_attn_every_n_layers")
    kinds = settings.texts("layer_types")
    if every is None and kinds.count("full_attention") > 1:
        full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
        every = full[1] - full[0]
    return bert_keys(settings) | {
        "attention.layer_norm_epsilon": settings.number("layer_norm_eps", "norm_eps", default=1e-5),
        "attention.layer_norm_rms_epsilon": settings.maybe_number("norm_eps"),
        "attention.sliding_window": settings.whole("local_attention", default=128),
        "attention.sliding_window_pattern": 3 if every is None else every,
        "rope.scaling.type": "none",
        "vocab_size": settings.whole("vocab_size"),
        "hidden_activation": settings.text("hidden_activation") or None,
    }


def modern_bert(settings: Settings) -> Family:
    """ModernBERT; a head that predicts words is of no use."""
    scores = settings.architecture.endswith("ForSequenceClassification")
    changes = UNUSED if scores else {r"^(head|decoder)\.": left_out, **UNUSED}
    return Family("modern-bert", keys=modern_bert_keys, changes=changes, names={**NAMES, r"^model\.": ""})


def t5_keys(settings: Settings) -> Keys:
    epsilon = settings.number("layer_norm_epsilon", default=1e-6)
    return {
        "context_length": settings.whole("n_positions", default=512),
        "feed_forward_length": settings.whole("d_ff"),
        "decoder_block_count": settings.maybe_whole("num_decoder_layers"),
        "attention.head_count": settings.whole("num_heads"),
        "attention.key_length": settings.whole("d_kv"),
        "attention.value_length": settings.whole("d_kv"),
        "attention.layer_norm_epsilon": epsilon,
        "attention.layer_norm_rms_epsilon": epsilon,
        "attention.relative_buckets_count": settings.whole("relative_attention_num_buckets", default=32),
        "decoder_start_token_id": settings.whole("decoder_start_token_id", default=0),
        "vocab_size": None,
    }


def drop_tied_embeddings(arrays: Arrays, _settings: Settings) -> Arrays:
    """T5's files may hold the embeddings under several names."""
    found = dict(arrays)
    names = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    given = [found.pop(name) for name in names if name in arrays]
    return {**found, "shared.weight": given[0]} if given else found


BERT = Family("bert", keys=bert_keys, changes=UNUSED, names=NAMES)
T5 = Family("t5", keys=t5_keys, prepare=drop_tied_embeddings)
ROBERTAS = Family("bert", keys=roberta_keys, changes=ROBERTA, names=WITH_HEAD)
FAMILIES: Families = {
    **dict.fromkeys(("BertModel", "BertForMaskedLM", "BertForSequenceClassification"), BERT),
    **dict.fromkeys(("RobertaModel", "RobertaForSequenceClassification"), ROBERTAS),
    **dict.fromkeys(("XLMRobertaModel", "XLMRobertaForSequenceClassification"), xlm_roberta),
    "NomicBertModel": nomic_bert,
    **dict.fromkeys(("JinaBertModel", "JinaBertForMaskedLM"), replace(BERT, architecture="jina-bert-v2")),
    **dict.fromkeys(("ModernBertModel", "ModernBertForMaskedLM"), modern_bert),
    "ModernBertForSequenceClassification": modern_bert,
    **dict.fromkeys(("T5ForConditionalGeneration", "T5WithLMHeadModel"), T5),
}
