"""The architectures of this package that use each op, and the encoders of pictures and sound, such as audio:whisper; made by
lab/engine/op_users.py, which traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ARCHITECTURES = (
    "bert cohere2 command-r deepseek2 ernie4_5 ernie4_5-moe gemma-embedding gemma2 gemma3 gemma3n "
    "gemma4 glm4 glm4moe gpt-oss gpt2 granite granitehybrid granitemoe jina-bert-v2 jina-bert-v3 lfm2 "
    "lfm2moe llama llama4 mamba mamba2 mistral3 mllama modern-bert nemotron_h nemotron_h_moe "
    "nomic-bert nomic-bert-moe olmo2 phi3 phi4mm qwen2 qwen25vl qwen2vl qwen3 qwen35 qwen3moe "
    "qwen3next qwen3vl rwkv7 smollm3 starcoder starcoder2 t5 whisper"
)
_OPS_OF_ARCHITECTURES = {
    "scaled_dot_product_attention": "all but mamba mamba2 rwkv7",
    "add": "all",
    "sub": "deepseek2 gemma3n rwkv7",
    "mul": (
        "all but bert cohere2 command-r ernie4_5 gemma-embedding gemma2 gemma3 glm4 gpt2 granite "
        "jina-bert-v3 mistral3 nomic-bert olmo2 phi3 phi4mm qwen2 qwen25vl qwen2vl qwen3 qwen3vl smollm3 "
        "starcoder starcoder2 t5 whisper"
    ),
    "div": "deepseek2 gemma3n glm4moe lfm2moe nemotron_h_moe",
    "sqr": "gemma3n nemotron_h nemotron_h_moe rwkv7",
    "sqrt": "gemma3n",
    "tanh": "bert gemma2 gemma3n gemma4 mllama rwkv7",
    "sigmoid": "deepseek2 glm4moe lfm2moe llama4 nemotron_h_moe qwen35 qwen3next rwkv7",
    "relu": "gemma3n nemotron_h nemotron_h_moe rwkv7 t5",
    "silu": (
        "all but bert gemma-embedding gemma2 gemma3 gemma3n gemma4 gpt-oss gpt2 jina-bert-v2 jina-bert-v3 "
        "modern-bert nomic-bert-moe rwkv7 starcoder starcoder2 t5 whisper"
    ),
    "gelu": "gemma-embedding gemma2 gemma3 gemma3n gemma4 gpt2 starcoder starcoder2 t5",
    "gelu_erf": "bert jina-bert-v2 jina-bert-v3 modern-bert nomic-bert-moe whisper",
    "swiglu": "gpt-oss",
    "softplus": "qwen35 qwen3next",
    "clamp": "deepseek2",
    "scale": (
        "cohere2 command-r deepseek2 gemma-embedding gemma2 gemma3 gemma3n gemma4 glm4moe granite "
        "granitehybrid granitemoe nemotron_h_moe qwen35 qwen3next rwkv7 t5"
    ),
    "cast": "t5",
    "rows": "all",
    "mulmat": "all",
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
        "rwkv7 starcoder starcoder2 whisper"
    ),
    "rms_norm": (
        "all but bert cohere2 command-r gpt2 jina-bert-v2 jina-bert-v3 modern-bert nomic-bert "
        "nomic-bert-moe rwkv7 starcoder starcoder2 whisper"
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
        "all but bert gpt2 granitehybrid jina-bert-v2 mamba mamba2 nemotron_h nemotron_h_moe rwkv7 "
        "starcoder t5 whisper"
    ),
    "ssm_conv": "granitehybrid lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe qwen35 qwen3next",
    "ssm_scan": "granitehybrid mamba mamba2 nemotron_h nemotron_h_moe",
    "delta_rule": "qwen35 qwen3next rwkv7",
    "reshape": "all",
    "view": "all but bert gemma-embedding jina-bert-v2",
    "permute": (
        "bert deepseek2 gemma-embedding gemma3n granitehybrid jina-bert-v2 jina-bert-v3 lfm2 lfm2moe "
        "mamba mamba2 modern-bert nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe qwen35 qwen3next t5"
    ),
    "slice": "all but bert gemma-embedding jina-bert-v3 nomic-bert nomic-bert-moe",
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
        "all but bert gemma-embedding jina-bert-v2 jina-bert-v3 modern-bert nomic-bert nomic-bert-moe"
    ),
}
_ENCODERS = (
    "audio:phi4 audio:qwen2-audio audio:ultravox audio:voxtral audio:whisper image:gemma3 "
    "image:idefics3 image:llama4 image:llava image:llava-next image:minicpm-v image:minicpm-v-4.6 "
    "image:mllama image:phi4 image:pixtral image:qwen2-vl image:qwen2.5-vl image:qwen3-vl"
)
_OPS_OF_ENCODERS = {
    "scaled_dot_product_attention": "all",
    "add": "all",
    "sub": "audio:phi4",
    "mul": "audio:phi4 image:llava image:mllama image:qwen3-vl",
    "relu": "audio:phi4 image:llava",
    "silu": "audio:phi4 audio:ultravox image:pixtral image:qwen2.5-vl",
    "gelu": "image:gemma3 image:idefics3 image:minicpm-v image:minicpm-v-4.6 image:phi4 image:qwen3-vl",
    "gelu_erf": "all but image:gemma3 image:idefics3 image:minicpm-v",
    "quick_gelu": "image:llava image:llava-next image:qwen2-vl",
    "clamp": "image:llava",
    "scale": "audio:phi4 audio:qwen2-audio image:llava",
    "rows": (
        "audio:phi4 image:llava-next image:minicpm-v image:minicpm-v-4.6 image:mllama image:phi4 "
        "image:qwen2.5-vl image:qwen3-vl"
    ),
    "mulmat": "all",
    "layer_norm": "all but image:pixtral image:qwen2.5-vl",
    "rms_norm": "audio:ultravox image:gemma3 image:pixtral image:qwen2.5-vl",
    "mean": "image:llava image:minicpm-v-4.6",
    "rope": "image:llama4 image:pixtral image:qwen2-vl image:qwen2.5-vl image:qwen3-vl",
    "reshape": "all",
    "view": "image:qwen3-vl",
    "permute": "all but image:llava-next image:minicpm-v image:qwen2-vl image:qwen2.5-vl image:qwen3-vl",
    "slice": "all but image:gemma3 image:idefics3 image:phi4 image:pixtral",
    "chunk": "audio:phi4 audio:ultravox",
    "contiguous": "all but image:qwen2-vl image:qwen3-vl",
    "pad": "audio:ultravox",
    "pad_ext": "audio:phi4 image:llava",
    "concat": (
        "all but audio:phi4 audio:qwen2-audio audio:ultravox audio:voxtral audio:whisper image:gemma3 "
        "image:idefics3 image:pixtral"
    ),
    "repeat": "image:phi4",
    "im2col": "audio:phi4 audio:qwen2-audio audio:ultravox audio:voxtral audio:whisper",
    "avg_pool2d": "image:gemma3 image:llava image:phi4",
}


def _users(op: str, table: Mapping[str, str], every: str) -> tuple[str, ...]:
    first, *others = table.get(op, "none").split()
    if first == "all":
        return tuple(name for name in every.split() if name not in others)
    return () if first == "none" else (first, *others)


OP_USERS: Final = {
    op: (
        *_users(op, _OPS_OF_ARCHITECTURES, _ARCHITECTURES),
        *_users(op, _OPS_OF_ENCODERS, _ENCODERS),
    )
    for op in {**_OPS_OF_ARCHITECTURES, **_OPS_OF_ENCODERS}
}
