"""What a GGUF file is made of, and the bounds that this reader puts on it."""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # they differ in nothing that a little-endian file shows
DEFAULT_ALIGNMENT = 32

# Bounds that no real file comes near, so that time and memory stay bounded whatever a file claims. What a
# file declares must also fit in the bytes that it has; these bounds are for sparse files of terabytes.
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1  # the specification's
MAX_ELEMENTS = (
    1 << 24
)  # in all arrays of the metadata together; a 256k vocabulary with merges takes 1.3 million
MAX_STRING_BYTES = 1 << 26  # a whole tokenizer.json inside a value takes half of it
MAX_TENSORS = 1 << 18
MAX_NAME_BYTES = 127  # ggml's own is 63, but files of its diffusion forks go up to this
MAX_RANK = 4
MAX_SIGNED = (1 << 63) - 1

MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # a key of one letter with a byte as its value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # a name of one letter and no dimensions


class ValueType(IntEnum):
    """The type of a metadata value, by GGUF's numbers."""

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
    ValueType.BOOL: struct.Struct("<B"),  # as a byte, so that 2 is seen and refused
    ValueType.UINT64: U64,
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


def unsigned(number: int) -> str:
    """A 64-bit field in words; a huge one is most often a negative number."""
    return str(number) if number <= MAX_SIGNED else f"{number} ({number - (1 << 64)} if signed)"
