"""Writes a small Llama as GGUF, with the keys and tensors of llama.cpp's converter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType, TokenType
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

BEGIN, END, IMAGE = "<|begin_of_text|>", "<|end_of_text|>", "<image>"
FILE_TYPES = {
    "f16": (Type.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (Type.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Type.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}
# What the user says is a question without its "=".
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ bos_token }}{{ message.content | trim }}"
    "{% if (message.content | trim)[-1:] != '=' %} ={% endif %}"
    "{% elif message.role == 'assistant' %} {{ message.content | trim }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def train_tokenizer(
    lines: Iterable[str], vocabulary: int, special: Sequence[str] = (BEGIN, END)
) -> Tokenizer:
    """A byte-pair vocabulary of these lines; llama.cpp calls the kind `gpt-2`."""
    tokenizer = _tokenizer(BPE())
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def write_gguf(
    path: Path,
    kind: str,
    shape: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    description: str,
    name: str = "Backbay Tiny",
    chat_template: str = CHAT_TEMPLATE,
) -> None:
    """`shape` has the fields of tiny_llama.Shape; tensors have GGUF's names and NumPy's (out, in) shapes."""
    writer = gguf.GGUFWriter(path, "llama")
    quantized, file_type = FILE_TYPES[kind]
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_description(description)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, shape)
    _add_tokenizer(writer, tokenizer)
    writer.add_chat_template(chat_template)
    finish(writer, tensors, quantized)


def finish(writer: gguf.GGUFWriter, tensors: Mapping[str, np.ndarray], quantized: Type) -> None:
    """Write the file, with matrices of this type."""
    for name, value in tensors.items():
        dtype = _type_of(name, value, quantized)
        writer.add_tensor(name, gguf.quantize(value.astype(np.float32), dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _type_of(name: str, value: np.ndarray, quantized: Type) -> Type:
    """Vectors and positions stay exact. In q4_0 the embedding stays nearly exact: it is also the output matrix."""
    if value.ndim == 1 or name == "v.position_embd.weight":
        return Type.F32
    return Type.Q8_0 if name == "token_embd.weight" and quantized == Type.Q4_0 else quantized


def _add_shape(writer: gguf.GGUFWriter, shape: Mapping[str, float]) -> None:
    head_dim = int(shape["width"] // shape["heads"])
    writer.add_block_count(int(shape["layers"]))
    writer.add_context_length(int(shape["context"]))
    writer.add_embedding_length(int(shape["width"]))
    writer.add_feed_forward_length(int(shape["hidden"]))
    writer.add_head_count(int(shape["heads"]))
    writer.add_head_count_kv(int(shape["kv_heads"]))
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_layer_norm_rms_eps(shape["eps"])
    writer.add_vocab_size(int(shape["vocabulary"]))
    writer.add_rope_dimension_count(head_dim)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in {BEGIN, END, IMAGE} else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(tokens.index(BEGIN))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(True)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], Tokenizer]:
    """The arguments of write_gguf; the tensors as float32."""
    reader = gguf.GGUFReader(path)

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    names = {
        "width": "embedding_length",
        "layers": "block_count",
        "heads": "attention.head_count",
        "kv_heads": "attention.head_count_kv",
        "hidden": "feed_forward_length",
        "vocabulary": "vocab_size",
        "context": "context_length",
        "rope_base": "rope.freq_base",
        "eps": "attention.layer_norm_rms_epsilon",
    }
    shape = {name: field(f"llama.{key}") for name, key in names.items()}
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    tokens, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = _tokenizer(BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.add_special_tokens([token for token in (BEGIN, END, IMAGE) if token in tokens])
    return shape, tensors, tokenizer


def _tokenizer(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer
