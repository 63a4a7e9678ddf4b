"""Whisper: an encoder of sound, whose names are those of projector files, and a decoder."""

from __future__ import annotations

from dataclasses import replace

from ...json_files import read_object
from ..changes import left_out
from ..config_json import Keys, Settings
from ..family_mapping import Families, Family

EPSILON = 1e-5  # of PyTorch's layer norms, which the configuration does not state
NAMES = {
    r"^model\.": "",
    r"^encoder\.layers\.": "a.blk.",
    r"^decoder\.layers\.": "blk.",
    r"^encoder\.layer_norm\.": "a.post_ln.",
    r"^encoder\.conv": "a.conv1d.",
    r"^encoder\.embed_positions\.": "a.position_embd.",
    r"^decoder\.layer_norm\.": "output_norm.",
    r"^decoder\.embed_tokens\.": "token_embd.",
    r"^decoder\.embed_positions\.": "position_embd.",
    r"^proj_out\.": "output.",
    r"\.encoder_attn_layer_norm\.": ".cross_attn_norm.",
    r"\.encoder_attn\.([qkv])_proj\.": r".cross_attn_\1.",
    r"\.encoder_attn\.out_proj\.": ".cross_attn_o.",
    r"\.self_attn\.([qkv])_proj\.": r".attn_\1.",
    r"^(a\.blk\.\d+)\.self_attn\.out_proj\.": r"\1.attn_out.",
    r"\.self_attn\.out_proj\.": ".attn_output.",
    r"^(a\.blk\.\d+)\.self_attn_layer_norm\.": r"\1.ln1.",
    r"^(a\.blk\.\d+)\.final_layer_norm\.": r"\1.ln2.",
    r"\.self_attn_layer_norm\.": ".attn_norm.",
    r"\.final_layer_norm\.": ".ffn_norm.",
    r"\.fc1\.": ".ffn_up.",
    r"\.fc2\.": ".ffn_down.",
}


def by_usual_names(settings: Settings) -> Settings:
    """The configuration with the decoder's sizes under the names that other models have."""
    blocks = max(settings.whole("encoder_layers"), settings.whole("decoder_layers"))
    values = {
        "num_hidden_layers": blocks,
        "hidden_size": settings.whole("d_model"),
        "num_attention_heads": settings.whole("decoder_attention_heads"),
        "intermediate_size": settings.whole("decoder_ffn_dim"),
        "max_position_embeddings": settings.whole("max_target_positions", default=448),
    }
    return replace(settings, values=settings.values | values)


def whisper_keys(settings: Settings) -> Keys:
    return {
        "block_count": settings.whole("decoder_layers"),
        "attention.layer_norm_epsilon": EPSILON,
        "audio.block_count": settings.whole("encoder_layers"),
        "audio.embedding_length": settings.width,
        "audio.feed_forward_length": settings.whole("encoder_ffn_dim"),
        "audio.attention.head_count": settings.whole("encoder_attention_heads"),
        "audio.attention.layer_norm_epsilon": EPSILON,
        "audio.num_mel_bins": settings.whole("num_mel_bins", default=80),
        "audio.context_length": settings.whole("max_source_positions", default=1500),
        **transcript_keys(settings),
    }


def transcript_keys(settings: Settings) -> Keys:
    """The rules of transcripts, by generation_config.json; old folders have some of them in config.json."""
    given = read_object(settings.folder / "generation_config.json", required=False)
    rules = replace(settings, values=settings.values | given)
    languages, tasks = rules.section("lang_to_id"), rules.section("task_to_id")
    return {
        "transcript.start_id": rules.maybe_whole("decoder_start_token_id"),
        "transcript.previous_id": rules.maybe_whole("prev_sot_token_id"),
        "transcript.no_timestamps_id": rules.maybe_whole("no_timestamps_token_id"),
        "transcript.transcribe_id": tasks.maybe_whole("transcribe"),
        "transcript.translate_id": tasks.maybe_whole("translate"),
        "transcript.multilingual": rules.flag("is_multilingual") if "is_multilingual" in rules else None,
        "transcript.languages": list(languages.values) or None,
        "transcript.language_ids": [languages.whole(name) for name in languages.values] or None,
        "transcript.latest_begin": rules.maybe_whole("max_initial_timestamp_index"),
        "transcript.suppressed_ids": rules.wholes("suppress_tokens") or None,
        "transcript.suppressed_first_ids": rules.wholes("begin_suppress_tokens") or None,
    }


def whisper(settings: Settings) -> Family:
    """Whisper; its head is the embedding, unless the configuration denies it."""
    tied = {r"^proj_out\.": left_out} if settings.flag("tie_word_embeddings", True) else {}
    return Family("whisper", keys=whisper_keys, changes=tied, names=NAMES, usual=by_usual_names)


FAMILIES: Families = {"WhisperForConditionalGeneration": whisper}
