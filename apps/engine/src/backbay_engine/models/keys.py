"""The keys that architectures share, with llama.cpp's names, and the values that are possible."""

from __future__ import annotations

from typing import Final

from backbay.gguf import choice, flag, number, whole, wholes

MOST_BLOCKS: Final = 1 << 10
MOST_EXPERTS: Final = 1 << 16

BLOCK_COUNT = whole("block_count", 1, MOST_BLOCKS)
PREDICTING_BLOCKS = whole("nextn_predict_layers", 0, MOST_BLOCKS)  # the last ones, for speculation
CONTEXT_LENGTH = whole("context_length", 2)
WIDTH = whole("embedding_length", 1)
LAYER_WIDTH = whole("embedding_length_per_layer_input")  # 0: no embeddings for each block

HEADS = whole("attention.head_count", 1)
KV_HEADS = whole("attention.head_count_kv", 1)
ATTENDING_HEADS = whole("attention.head_count_kv")  # 0: the block has no attention
KEY_LENGTH = whole("attention.key_length", 1)
VALUE_LENGTH = whole("attention.value_length", 1)
WINDOW_KEY_LENGTH = whole("attention.key_length_swa", 1)
SHARED_CACHES = whole("attention.shared_kv_layers", 0, MOST_BLOCKS)  # the last blocks, which see others' keys
QUERY_LATENT = whole("attention.q_lora_rank", 1)
LATENT = whole("attention.kv_lora_rank", 1)
OWN_KEY_LENGTH = whole("attention.key_length_mla", 1)  # of the heads behind the latent vector
OWN_VALUE_LENGTH = whole("attention.value_length_mla", 1)
CROSS_LAYERS = wholes("attention.cross_attention_layers")
SCALE = number("attention.scale", most=1e4, above=0)
SOFTCAP = number("attn_logit_softcapping", 1e-3, 1e6, or_zero=True)
LOGIT_SOFTCAP = number("final_logit_softcapping", 1e-3, 1e6, or_zero=True)
LOGIT_SCALE = number("logit_scale", 1e-6, 1e6)
EMBEDDING_SCALE = number("embedding_scale", most=1e4, above=0)
RESIDUAL_SCALE = number("residual_scale", most=1e4, above=0)
WINDOW = whole("attention.sliding_window")  # 0: none
WINDOW_PATTERN = whole("attention.sliding_window_pattern")
RMS_EPSILON = number("attention.layer_norm_rms_epsilon", 0, 1)
EPSILON = number("attention.layer_norm_epsilon", 0, 1)

CONVOLUTION_TAPS = whole("ssm.conv_kernel", 1, 1 << 10)
STATE_INNER = whole("ssm.inner_size", 1)
STATE_SIZE = whole("ssm.state_size", 1)
STATE_HEADS = whole("ssm.time_step_rank", 1)
STATE_GROUPS = whole("ssm.group_count", 1)

HIDDEN = whole("feed_forward_length", 1)
EXPERT_HIDDEN = whole("expert_feed_forward_length", 1)
EXPERTS = whole("expert_count", 0, MOST_EXPERTS)
USED_EXPERTS = whole("expert_used_count", 0, MOST_EXPERTS)
EXPERT_GROUPS = whole("expert_group_count", 0, MOST_EXPERTS)
USED_EXPERT_GROUPS = whole("expert_group_used_count", 0, MOST_EXPERTS)
GATING = whole(
    "expert_gating_func", 0, 3, expected="none (0), softmax (1), sigmoid (2) or softmax of the chosen (3)"
)
NORMALIZED_SHARES = flag("expert_weights_norm")
SHARE_SCALE = number("expert_weights_scale", 0, 1e4)

ROTATED = whole("rope.dimension_count", 2)
WINDOW_ROTATED = whole("rope.dimension_count_swa", 2)
BASE = number("rope.freq_base", most=1e30, above=1)
WINDOW_BASE = number("rope.freq_base_swa", most=1e30, above=1)
SECTIONS = wholes("rope.dimension_sections")
OLLAMA_SECTIONS = wholes("rope.mrope_section")
DEEPSTACK = whole("n_deepstack_layers", 0, MOST_BLOCKS)
OLLAMA_DEEPSTACK = wholes("vision.deepstack_visual_indexes", 0, MOST_BLOCKS)  # blocks of the encoder
SCALING = choice("rope.scaling.type", "none", "linear", "yarn", "longrope")
FACTOR = number("rope.scaling.factor", 1e-6, 1e6, or_zero=True)
OLD_FACTOR = number("rope.scale_linear", 1e-6, 1e6, or_zero=True)
ORIGINAL_CONTEXT = whole("rope.scaling.original_context_length", 1)
MAGNITUDE = number("rope.scaling.attn_factor", most=1e3, above=0)
YARN_MIX = number("rope.scaling.yarn_ext_factor", 0, 1)
YARN_MAGNITUDE = number("rope.scaling.yarn_attn_factor", most=1e3, above=0)
YARN_SHARPNESS = number("rope.scaling.yarn_log_multiplier", 0, 1e3)
YARN_FAST = number("rope.scaling.yarn_beta_fast", most=1e6, above=0)
YARN_SLOW = number("rope.scaling.yarn_beta_slow", most=1e6, above=0)

POOLING = whole(
    "pooling_type", 0, 4, expected="none (0), mean (1), first (2) or last token (3), or a score (4)"
)
SCORED_POOLING = whole("classifier.pooling_type", 1, 3, expected="mean (1), first (2) or last token (3)")
