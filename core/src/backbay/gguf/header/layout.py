"""The constants of the GGUF format, and the bounds of this reader."""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # in little-endian files they are the same
DEFAULT_ALIGNMENT = 32

# Whatever a file claims, these bounds limit time and memory; no real file comes near them. The file's own size
# limits its claims too, so the bounds matter for sparse files of terabytes.
MAX_ALIGNMENT = 1 << 20
MAX_HEADER_BYTES = 1 << 27  # a header is held in memory; large vocabularies take some 20 MB
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1  # the specification's limit
MAX_ELEMENTS = 1 << 22  # of all arrays together; a vocabulary of 256k tokens with its merges has 1.3 million
MAX_STRING_BYTES = 1 << 26  # twice the size of a whole tokenizer.json in a value
MAX_TENSORS = 1 << 18
MAX_NAME_BYTES = 127  # ggml's limit is 63, but its forks for diffusion write up to 127
MAX_RANK = 4
MAX_SIGNED = (1 << 63) - 1
LARGEST_COUNT = (1 << 31) - 1  # of whatever the metadata count: C libraries take 32 bits

MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # a key of one letter, a value of one byte
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # a name of one letter, no dimensions


class ValueType(IntEnum):
    """The type of a metadata value, with GGUF's numbers."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

SCALARS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: U32,
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<B"),  # a byte: "<?" would read 2 as True
    ValueType.UINT64: U64,
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


def unsigned(number: int) -> str:
    """A 64-bit field as text; a huge number, which is mostly a negative one, is shown with its signed value."""
    return str(number) if number <= MAX_SIGNED else f"{number} ({number - (1 << 64)} if signed)"
