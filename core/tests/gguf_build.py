"""GGUF files for tests: byte by byte, so that they can be wrong, and with gguf's own writer."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import quant_shape_to_byte_shape, quantize

UINT8, UINT32, BOOL, STRING, ARRAY = 0, 4, 7, 8, 9
F32 = 0

Type = GGMLQuantizationType
PLAIN = {
    Type.F32: "f4",
    Type.F16: "f2",
    Type.F64: "f8",
    Type.I8: "i1",
    Type.I16: "i2",
    Type.I32: "i4",
    Type.I64: "i8",
}


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number % (1 << 64))


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + u32(kind) + payload


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return pair(key, ARRAY, u32(kind) + u64(count) + payload)


def tensor(name: str | bytes, shape: Iterable[int] = (8,), dtype: int = F32, offset: int = 0) -> bytes:
    dims = list(shape)
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(dtype) + u64(offset)


def model(
    pairs: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    pairs, tensors = list(pairs), list(tensors)
    header = b"GGUF" + u32(version) + u64(len(tensors)) + u64(len(pairs)) + b"".join([*pairs, *tensors])
    return header + bytes(-len(header) % alignment) + data


def add_all_value_types(writer: GGUFWriter) -> None:
    """One key of each scalar type and one array of each element type."""
    integers = {"uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32, "int32": 32, "uint64": 64}
    for name, bits in (integers | {"int64": 64}).items():
        low, high = (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        kind = GGUFValueType[name.upper()]
        writer.add_key_value(f"test.{name}", high, kind)
        writer.add_key_value(f"test.{name}s", [low, 1, high], GGUFValueType.ARRAY, sub_type=kind)
    for name in ("float32", "float64"):
        kind = GGUFValueType[name.upper()]
        writer.add_key_value(f"test.{name}", -1.25, kind)
        writer.add_key_value(f"test.{name}s", [0.5, -3.0, 1e30], GGUFValueType.ARRAY, sub_type=kind)
    writer.add_bool("test.bool", val=True)
    writer.add_array("test.bools", [True, False, True])
    writer.add_string("test.string", "naïve ☃ 文字")
    writer.add_array("test.strings", ["a", "", "☃", "b" * 300])


def weights(kind: Type, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """An array of this type, innermost dimension last, as GGUFWriter takes it."""
    random = np.random.default_rng(seed)
    if kind in PLAIN:
        return random.integers(-100, 100, shape).astype(PLAIN[kind])
    try:
        quantized: np.ndarray[Any, Any] = quantize(random.standard_normal(shape).astype(np.float32), kind)
    except NotImplementedError:
        # gguf cannot quantize to this type; any bytes will do for what only stores them.
        return random.integers(0, 256, quant_shape_to_byte_shape(shape, kind), dtype=np.uint8)
    return quantized


def write_model(
    path: Path,
    *,
    kinds: Iterable[Type] = (Type.F32,),
    vocabulary: int = 8,
    alignment: int = 32,
    per_part: int = 0,
) -> None:
    """A small but whole model: all value types, a vocabulary, and two tensors of each dtype."""
    writer = GGUFWriter(path, "llama", split_max_tensors=per_part)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i}" for i in range(vocabulary)])
    writer.add_token_merges([f"t{i} m{i}" for i in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    add_all_value_types(writer)
    for number, kind in enumerate(kinds):
        for name, shape in ((f"blk.{number}.w", (3, 256)), (f"blk.{number}.b", (256,))):
            writer.add_tensor(name, weights(kind, shape, number), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
