"""The architectures of this package that use each op; made by engine/tools/op_users.py, which traces them."""

from __future__ import annotations

from typing import Final

_NAMES = {
    "scaled_dot_product_attention": (
        "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
        "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama llama4 modern-bert nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe olmo2 phi3 "
        "qwen2 qwen3 qwen35 qwen3moe qwen3next smollm3 starcoder starcoder2 t5"
    ),
    "add": (
        "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
        "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert "
        "nomic-bert-moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder "
        "starcoder2 t5"
    ),
    "sub": "deepseek2 gemma3n rwkv7",
    "mul": (
        "deepseek2 ernie4_5-moe gemma3n gemma4 glm4moe gpt-oss granitehybrid granitemoe jina-bert-v2 lfm2 "
        "lfm2moe llama llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert-moe qwen35 "
        "qwen3moe qwen3next rwkv7"
    ),
    "div": "deepseek2 gemma3n glm4moe lfm2moe nemotron_h_moe",
    "sqr": "gemma3n nemotron_h nemotron_h_moe rwkv7",
    "sqrt": "gemma3n",
    "tanh": "bert gemma2 gemma3n gemma4 rwkv7",
    "sigmoid": "deepseek2 glm4moe lfm2moe llama4 nemotron_h_moe qwen35 qwen3next rwkv7",
    "relu": "gemma3n nemotron_h nemotron_h_moe rwkv7 t5",
    "silu": (
        "cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe glm4 glm4moe granite granitehybrid granitemoe "
        "lfm2 lfm2moe llama llama4 mamba mamba2 nemotron_h nemotron_h_moe nomic-bert olmo2 phi3 qwen2 "
        "qwen3 qwen35 qwen3moe qwen3next smollm3"
    ),
    "gelu": "gemma-embedding gemma2 gemma3 gemma3n gemma4 gpt2 starcoder starcoder2 t5",
    "gelu_erf": "bert jina-bert-v2 jina-bert-v3 modern-bert nomic-bert-moe",
    "swiglu": "gpt-oss",
    "softplus": "qwen35 qwen3next",
    "clamp": "deepseek2",
    "scale": (
        "cohere2 command-r deepseek2 gemma-embedding gemma2 gemma3 gemma3n gemma4 glm4moe granite "
        "granitehybrid granitemoe nemotron_h_moe qwen35 qwen3next rwkv7 t5"
    ),
    "cast": "t5",
    "rows": (
        "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
        "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert "
        "nomic-bert-moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder "
        "starcoder2 t5"
    ),
    "mulmat": (
        "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
        "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert "
        "nomic-bert-moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder "
        "starcoder2 t5"
    ),
    "mulmat_id": (
        "deepseek2 ernie4_5-moe gemma4 glm4moe gpt-oss granitehybrid granitemoe lfm2moe llama llama4 "
        "nemotron_h_moe nomic-bert-moe qwen3moe qwen3next"
    ),
    "add_id": "gpt-oss",
    "softmax": (
        "deepseek2 ernie4_5-moe gemma4 gpt-oss granitehybrid granitemoe llama nomic-bert-moe qwen3moe "
        "qwen3next"
    ),
    "layer_norm": (
        "bert cohere2 command-r gpt2 jina-bert-v2 jina-bert-v3 modern-bert nomic-bert nomic-bert-moe "
        "rwkv7 starcoder starcoder2"
    ),
    "rms_norm": (
        "deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n gemma4 glm4 glm4moe "
        "gpt-oss granite granitehybrid granitemoe lfm2 lfm2moe llama llama4 mamba mamba2 nemotron_h "
        "nemotron_h_moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next smollm3 t5"
    ),
    "l2_norm": "qwen35 qwen3next rwkv7",
    "top_k": (
        "deepseek2 ernie4_5-moe gemma4 glm4moe gpt-oss granitehybrid granitemoe lfm2moe llama llama4 "
        "nemotron_h_moe nomic-bert-moe qwen3moe qwen3next"
    ),
    "sum_rows": "deepseek2 glm4moe lfm2moe nemotron_h_moe rwkv7",
    "mean": "gemma3n",
    "stddev": "gemma3n",
    "rope": (
        "cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n gemma4 "
        "glm4 glm4moe gpt-oss granite granitemoe jina-bert-v3 lfm2 lfm2moe llama llama4 modern-bert "
        "nomic-bert nomic-bert-moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next smollm3 starcoder2"
    ),
    "ssm_conv": "granitehybrid lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe qwen35 qwen3next",
    "ssm_scan": "granitehybrid mamba mamba2 nemotron_h nemotron_h_moe",
    "delta_rule": "qwen35 qwen3next rwkv7",
    "reshape": (
        "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
        "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert "
        "nomic-bert-moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder "
        "starcoder2 t5"
    ),
    "view": (
        "cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma2 gemma3 gemma3n gemma4 glm4 glm4moe "
        "gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v3 lfm2 lfm2moe llama llama4 mamba "
        "mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe olmo2 phi3 qwen2 qwen3 "
        "qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder starcoder2 t5"
    ),
    "permute": (
        "bert deepseek2 gemma-embedding gemma3n granitehybrid jina-bert-v2 jina-bert-v3 lfm2 lfm2moe "
        "mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe qwen35 qwen3next t5"
    ),
    "slice": (
        "cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma2 gemma3 gemma3n gemma4 glm4 glm4moe "
        "gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 lfm2 lfm2moe llama llama4 mamba "
        "mamba2 modern-bert nemotron_h nemotron_h_moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next "
        "rwkv7 smollm3 starcoder starcoder2 t5"
    ),
    "chunk": "gemma4 glm4 jina-bert-v2 lfm2 lfm2moe mamba modern-bert phi3 qwen35 qwen3next",
    "chunk_sections": "deepseek2 gemma3n granitehybrid mamba mamba2 nemotron_h nemotron_h_moe",
    "contiguous": (
        "bert deepseek2 gemma-embedding gemma3n gemma4 glm4 granitehybrid jina-bert-v2 jina-bert-v3 lfm2 "
        "lfm2moe llama4 mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe phi3 "
        "qwen35 qwen3next rwkv7 t5"
    ),
    "concat": (
        "deepseek2 gemma3n granitehybrid lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe qwen35 "
        "qwen3next rwkv7"
    ),
    "repeat": "gemma3n",
    "repeat_4d": "gemma4 llama4 qwen35 qwen3next rwkv7",
    "set_rows": (
        "cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma2 gemma3 gemma3n gemma4 glm4 glm4moe "
        "gpt-oss gpt2 granite granitehybrid granitemoe lfm2 lfm2moe llama llama4 mamba mamba2 nemotron_h "
        "nemotron_h_moe olmo2 phi3 qwen2 qwen3 qwen35 qwen3moe qwen3next rwkv7 smollm3 starcoder "
        "starcoder2 t5"
    ),
}
OP_USERS: Final = {op: tuple(names.split()) for op, names in _NAMES.items()}
