"""The files of whisper.cpp, ggml-*.bin: Whisper's numbers, vocabulary and tensors, as a model file."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from backbay import DType, ModelFileError
from backbay.gguf import Config, Content, Derived, ModelFile, TensorInfo, open_content

from .arrays import LazyArray, Open, stored_array
from .json_files import first_bytes
from .whisper_tokens import whisper_tokens

MAGIC: Final = b"lmgg"  # 0x67676d6c
NUMBERS: Final = (
    *("words", "positions", "width", "heads", "blocks", "context"),
    *("text_width", "text_heads", "text_blocks", "bins", "kind"),
)
MOST: Final = 1 << 20  # of each number
LONGEST_NAME, LONGEST_WORD, MOST_RANK = 127, 1 << 12, 4
VERSION: Final = 1000  # times the version of quantized blocks is in the kind
KNOWN_VERSION: Final = 2
EPSILON: Final = 1e-5
NAMES: Final = {
    r"^encoder\.positional_embedding$": "a.position_embd.weight",
    r"^decoder\.positional_embedding$": "position_embd.weight",
    r"^decoder\.token_embedding\.": "token_embd.",
    r"^decoder\.ln\.": "output_norm.",
    r"^encoder\.ln_post\.": "a.post_ln.",
    r"^encoder\.conv": "a.conv1d.",
    r"^encoder\.blocks\.": "a.blk.",
    r"^decoder\.blocks\.": "blk.",
    r"\.mlp\.0\.": ".ffn_up.",
    r"\.mlp\.2\.": ".ffn_down.",
    r"\.cross_attn_ln\.": ".cross_attn_norm.",
    r"\.cross_attn\.out\.": ".cross_attn_o.",
    r"(attn)\.(q)uery\.": r"\1_\2.",
    r"(attn)\.(k)ey\.": r"\1_\2.",
    r"(attn)\.(v)alue\.": r"\1_\2.",
    r"^(a\.blk\.\d+)\.attn\.out\.": r"\1.attn_out.",
    r"\.attn\.out\.": ".attn_output.",
    r"^(a\.blk\.\d+)\.attn_ln\.": r"\1.ln1.",
    r"^(a\.blk\.\d+)\.mlp_ln\.": r"\1.ln2.",
    r"\.attn_ln\.": ".attn_norm.",
    r"\.mlp_ln\.": ".ffn_norm.",
}


def is_whisper_file(path: Path) -> bool:
    """Whether a file begins as those of whisper.cpp do."""
    try:
        return path.is_file() and first_bytes(path, len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_whisper(path: Path, only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a file of whisper.cpp. Its weights stay mapped; those that lie at odd offsets are copied when they are read."""
    content = open_content(path, "a file of whisper.cpp")
    reader = _Reader(content)
    reader.skip(len(MAGIC), "the magic")
    numbers = reader.numbers()
    reader.skip_filters(numbers)
    words = reader.words(numbers)
    tensors: dict[str, TensorInfo] = {}
    derived: dict[str, Derived] = {}
    for name, array in reader.tensors():
        if name in tensors:
            raise reader.refuse(f"no second tensor {name!r}", "it again")
        if only is None or only(name):
            tensors[name], how = array.as_tensor(name)
            if how is not None:
                derived[name] = how
    vocabulary = whisper_tokens(tuple(words), numbers["words"], numbers["positions"])
    metadata = {**_keys(path, numbers), **vocabulary}
    return ModelFile(path, [content], Config(metadata, path=path), tensors, derived)


def _keys(path: Path, numbers: dict[str, int]) -> dict[str, Any]:
    own = {
        "block_count": numbers["text_blocks"],
        "context_length": numbers["context"],
        "embedding_length": numbers["text_width"],
        "feed_forward_length": 4 * numbers["text_width"],
        "attention.head_count": numbers["text_heads"],
        "attention.layer_norm_epsilon": EPSILON,
        "vocab_size": numbers["words"],
        "audio.block_count": numbers["blocks"],
        "audio.embedding_length": numbers["width"],
        "audio.feed_forward_length": 4 * numbers["width"],
        "audio.attention.head_count": numbers["heads"],
        "audio.attention.layer_norm_epsilon": EPSILON,
        "audio.num_mel_bins": numbers["bins"],
        "audio.context_length": numbers["positions"],
    }
    general = {"general.architecture": "whisper", "general.type": "model", "general.name": path.stem}
    return general | {f"whisper.{key}": value for key, value in own.items()}


@final
@dataclass
class _Reader:
    """Reads the parts of a file in their order; whatever it claims must lie within it."""

    content: Content
    offset: int = 0

    def skip(self, count: int, what: str) -> int:
        start = self.offset
        if count > self.content.size - start:
            raise self.refuse(f"{count} bytes of {what}", f"{self.content.size - start} bytes before the end")
        self.offset += count
        return start

    def take(self, count: int, what: str) -> bytes:
        start = self.skip(count, what)
        target = bytearray(count)
        self.content.read(start, memoryview(target))
        return bytes(target)

    def number(self, what: str, least: int = 0, most: int = MOST) -> int:
        (found,) = struct.unpack("<i", self.take(4, what))
        if not least <= found <= most:
            self.offset -= 4
            raise self.refuse(f"{what} from {least} to {most}", str(found))
        return int(found)

    def refuse(self, expected: str, found: str) -> ModelFileError:
        return ModelFileError(self.content.path, self.offset, expected, found)

    def numbers(self) -> dict[str, int]:
        found = {name: self.number(name, 0 if name == "kind" else 1) for name in NUMBERS}
        version, kind = divmod(found["kind"], VERSION)
        if kind > 1 and version != KNOWN_VERSION:
            raise self.refuse(
                f"quantized blocks of version {KNOWN_VERSION}", f"version {version}; convert anew"
            )
        return found

    def skip_filters(self, numbers: dict[str, int]) -> None:
        """The filters of the spectrogram are always the same."""
        bins, lines = (self.number(what, 1) for what in ("bins of filters", "lines of filters"))
        if bins != numbers["bins"]:
            raise self.refuse(f"filters of {numbers['bins']} bins", str(bins))
        self.skip(4 * bins * lines, "filters")

    def words(self, numbers: dict[str, int]) -> list[bytes]:
        count = self.number("tokens of the vocabulary", 1, numbers["words"])
        lengths = (self.number("the length of a token", 0, LONGEST_WORD) for _ in range(count))
        return [self.take(length, "a token") for length in lengths]

    def tensors(self) -> Iterator[tuple[str, LazyArray]]:
        while self.offset < self.content.size:
            rank = self.number("the rank of a tensor", 1, MOST_RANK)
            length = self.number("the length of a tensor's name", 1, LONGEST_NAME)
            kind = self.number("the type of a tensor", 0, 255)
            shape = tuple(self.number("a dimension", 1, 1 << 30) for _ in range(rank))
            name = self.take(length, "the name of a tensor").decode("utf-8", "replace")
            yield _renamed(name), self._array(name, kind, shape)

    def _array(self, name: str, kind: int, shape: tuple[int, ...]) -> LazyArray:
        dtype = next((each for each in DType if int(each) == kind), None)
        if dtype is None or not (dtype.is_float or dtype.is_quantized):
            raise self.refuse(f"floats or quantized blocks in tensor {name!r}", f"type {kind}")
        if shape[0] % dtype.block_size:
            raise self.refuse(f"rows of {dtype.block_size} in tensor {name!r}, for {dtype}", str(shape[0]))
        nbytes = dtype.row_size(shape[0]) * prod(shape[1:])
        start = self.skip(nbytes, f"tensor {name!r}")
        info = TensorInfo(name, dtype, shape, start, nbytes, self.content.path)
        return _blocks(info) if dtype.is_quantized else stored_array(info)


def _blocks(info: TensorInfo) -> LazyArray:
    """A quantized tensor, whose last dimension has bytes."""
    shape = (*reversed(info.shape[1:]), info.dtype.row_size(info.shape[0]))

    def rows(data: Open, begin: int, end: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.ndarray(shape, np.uint8, data(info).data)[begin:end]

    return LazyArray(shape, info.dtype, (info,), rows, info)


def _renamed(name: str) -> str:
    for pattern, replacement in NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name
