"""Converts a GGUF Llama of q4_0 to a folder for onnxruntime-genai, with the same integers and scales.

    python lab/bench/genai_model.py one_b.q4_0.gguf one_b.genai

Needs onnxruntime-genai, torch, transformers, tokenizers, safetensors and onnx-ir. The model builder quantizes the
file's decoded numbers, and computes the same blocks again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from llama_file import BOS, EOS, EPS, ROPE_BASE, SHAPES, Shape
from numpy.typing import NDArray

OPTIONS = ("accuracy_level=4", "block_size=32", "is_symmetric=true", "prune_lm_head=true")
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def ensure_folder(folder: Path, model: Path, shape: Shape) -> Path:
    """The folder for onnxruntime-genai, built unless it exists."""
    if not (folder / "genai_config.json").exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as source:
            write_source(Path(source), model, shape)
            build(Path(source), folder)
    return folder


def build(source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    command += ["-i", str(source), "-o", str(folder), "-c", str(source / "cache"), "-p", "int4", "-e", "cpu"]
    subprocess.run([*command, "--extra_options", *OPTIONS, "hf_token=false"], check=True, stdout=sys.stderr)


def write_source(folder: Path, model: Path, shape: Shape) -> None:
    """Write the weights as float32, a file for each layer, with the index that transformers needs."""
    from safetensors.numpy import save_file

    places: dict[str, str] = {}
    for part, tensors in parts(model, shape):
        save_file(tensors, folder / part, {"format": "pt"})
        places |= dict.fromkeys(tensors, part)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config(shape)))
    write_tokenizer(folder, shape.vocab)


def parts(model: Path, shape: Shape) -> Iterator[tuple[str, dict[str, NDArray[np.float32]]]]:
    """File names and their tensors, with names of transformers."""
    held: dict[str, dict[str, NDArray[np.float32]]] = {}
    for tensor in gguf.GGUFReader(model).tensors:
        names = tensor.name.removesuffix(".weight").split(".")
        layer = f"model.layers.{names[1]}." if names[0] == "blk" else ""
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if names[-1] in ("attn_q", "attn_k"):
            numbers = halves(numbers, shape.head)
        made = held.setdefault(f"{layer.replace('.', '_') or 'rest_'}.safetensors", {})
        made[f"{layer}{NAMES[names[-1]]}.weight"] = numbers
    yield from held.items()


def halves(rows: NDArray[np.float32], head: int) -> NDArray[np.float32]:
    """Reorder rows: RoPE pairs adjacent rows in GGUF's Llamas, and the two halves of a head in transformers."""
    return np.ascontiguousarray(rows.reshape(-1, head // 2, 2, rows.shape[1]).swapaxes(1, 2)).reshape(
        rows.shape
    )


def config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_BASE,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a tokenizer: the benchmark does not use it, but the builder copies it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"t{n}": n for n in range(vocab)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": f"t{EOS}", "bos_token": f"t{BOS}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="one_b")
    args = parser.parse_args()
    ensure_folder(args.folder, args.model, SHAPES[args.shape])


if __name__ == "__main__":
    main()
