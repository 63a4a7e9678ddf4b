"""Writes a Llama of random weights as a GGUF file that backbay, llama.cpp and others open like any other model.

    python lab/bench/llama_file.py one_b.q4_0.gguf --shape one_b --dtype q4_0

Metadata and vocabulary are complete: any text can be tokenized. The model never generates an end of text.
"""

from __future__ import annotations

import argparse
import string
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from sides import side_arguments, write_json

EPS = 1e-5
ROPE_BASE = 1e4
DTYPES = ("q4_0", "q8_0", "f16", "f32")
OUTPUTS = ("attn_output.weight", "ffn_down.weight")  # of a layer
SPECIALS = ("<unk>", "<s>", "</s>")
UNKNOWN, BOS, EOS = range(3)


@dataclass(frozen=True)
class Shape:
    layers: int = 16
    width: int = 2048
    hidden: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 32000
    context: int = 4096

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.head * self.kv_heads

    def matrices(self, layer: int) -> Iterator[tuple[str, int, int]]:
        """Name, inputs and outputs of a layer's matrices."""
        yield from (
            (f"blk.{layer}.{name}.weight", inputs, outputs)
            for name, inputs, outputs in (
                ("attn_q", self.width, self.width),
                ("attn_k", self.width, self.kv_width),
                ("attn_v", self.width, self.kv_width),
                ("attn_output", self.width, self.width),
                ("ffn_gate", self.width, self.hidden),
                ("ffn_up", self.width, self.hidden),
                ("ffn_down", self.hidden, self.width),
            )
        )


SHAPES = {
    "one_b": Shape(),  # the shape of Llama 3.2 1B with the vocabulary size of Llama 2
    "one_b_128k": Shape(vocab=128256),  # and with that of Llama 3
    "eight_b": Shape(layers=32, width=4096, hidden=14336, vocab=128256, context=8192),  # that of Llama 3 8B
    "tiny_llama": Shape(layers=22, hidden=5632, kv_heads=4),
    "small": Shape(layers=4, width=512, hidden=1408, heads=8, kv_heads=4),
    "host": Shape(layers=16, width=64, hidden=64, heads=2, kv_heads=1, vocab=512),  # almost no computation
}


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The arguments that comparisons of a Llama share."""
    parser = side_arguments(description, rounds=rounds)
    parser.add_argument("--dtype", default="q4_0", choices=DTYPES)
    parser.add_argument("--shape", default="one_b", choices=SHAPES)
    parser.add_argument("--model", type=Path, help="a file to keep and use again")
    return parser


def be_side_or_compare(
    args: argparse.Namespace,
    be_side: Callable[[argparse.Namespace], None],
    compare: Callable[[argparse.Namespace], Mapping[str, Any]],
) -> None:
    """Run as a side, or start all sides with one model file."""
    if args.side:
        be_side(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.model = ensure_model(args.model or Path(folder) / "model.gguf", SHAPES[args.shape], args.dtype)
        results = compare(args)
    write_json(args.json, results)


def ensure_model(path: Path, shape: Shape, dtype: str) -> Path:
    """The path of the model file, written unless it exists."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        write_model(partial, shape, dtype)
        partial.rename(path)
    return path


def write_model(
    path: Path, shape: Shape, dtype: str, *, heard: int | None = None, right: bool | None = None
) -> None:
    """Write random weights that keep activations near 1; layers differ, so that engines share no data between them.

    If only the first `heard` layers change anything, a file of these layers alone writes the same texts. If `right` is
    not None, the last layer is a head that predicts the token after the next one, always right if no layer is heard.
    """
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, shape, dtype)
    write_vocabulary(writer, shape.vocab)
    rng = np.random.default_rng(0)
    made: dict[str, NDArray[np.generic]] = {}  # by name within the layer

    def matrix(name: str, inputs: int, outputs: int, *, layer: int = 0, silent: int = 0) -> None:
        part = name.split(".", 2)[-1]
        if part not in made:
            numbers = rng.standard_normal((outputs, inputs), np.float32) / np.float32(inputs**0.5)
            numbers[:silent] = 0
            made[part] = numbers.astype(np.float16) if dtype == "f16" else gguf.quants.quantize(numbers, kind)
        numbers = np.roll(made[part], layer, axis=0)
        if heard is not None and layer >= heard and part in OUTPUTS:
            numbers = np.zeros_like(numbers)  # a block of zeros is zeros in all of DTYPES
        writer.add_tensor(name, numbers, raw_dtype=kind)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.width, np.float32))

    matrix("token_embd.weight", shape.width, shape.vocab)
    for layer in range(shape.layers):
        ones(f"blk.{layer}.attn_norm.weight")
        ones(f"blk.{layer}.ffn_norm.weight")
        for name, inputs, outputs in shape.matrices(layer):
            matrix(name, inputs, outputs, layer=layer)
    if right is not None:
        head, width = f"blk.{shape.layers - 1}.nextn.", shape.width
        writer.add_uint32("llama.nextn_predict_layers", 1)
        ones(f"{head}enorm.weight")
        ones(f"{head}hnorm.weight")
        join = (
            np.eye(width, 2 * width, dtype=np.float32) if right else rng.standard_normal((width, 2 * width))
        )
        stored = gguf.quants.quantize(join.astype(np.float32), kind)
        writer.add_tensor(f"{head}eh_proj.weight", stored, raw_dtype=kind)
    ones("output_norm.weight")
    matrix("output.weight", shape.width, shape.vocab, silent=len(SPECIALS))  # greedy choice never ends a text
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: gguf.GGUFWriter, shape: Shape, dtype: str) -> None:
    writer.add_name("random Llama")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{dtype.upper()}" if dtype != "f32" else "ALL_F32"])
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(shape.vocab)


def write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Write a vocabulary like SentencePiece's: specials, bytes, characters, then longer pieces by falling score."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    count = size - len(SPECIALS) - len(bytes_)
    pieces = list(islice(_pieces(), count))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*SPECIALS, *bytes_, *pieces])
    writer.add_token_scores([0.0] * (size - count) + [-float(rank) for rank in range(count)])
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_token_types([*types, *[gguf.TokenType.NORMAL] * count])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def _pieces() -> Iterator[str]:
    """Distinct pieces."""
    lower = string.ascii_lowercase
    space = "\u2581"
    yield from space + string.ascii_letters + string.digits + string.punctuation
    for count in (1, 2, 3, 4):
        for letters in product(lower, repeat=count):
            word = "".join(letters)
            yield space + word
            if count > 1:
                yield word


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="one_b")
    parser.add_argument("--dtype", choices=DTYPES, default="q4_0")
    args = parser.parse_args()
    write_model(args.path, SHAPES[args.shape], args.dtype)
    print(f"{args.path}: {args.path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
