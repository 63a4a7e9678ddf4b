"""A model file in GGUF, written tensor by tensor."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, DType, OptionError
from backbay.gguf import Config, ModelFile, Strings, TensorInfo, ValueType
from backbay.internals import numpy_view, replacing, usable_cores
from backbay.plugin import Cancel, check_cancel, decode, encode

from ..checkpoints.transformers.config_json import SignedNumber
from . import k_quants
from .recipes import QuantizationRecipe, bytes_by_dtype, is_lossless, nbytes_of

log = logging.getLogger(__name__)

Bytes: TypeAlias = NDArray[np.uint8]
ALIGNMENT = 32
PIECE = 1 << 16  # numbers quantized at a time: intermediate results stay in the processor's cache
_K_QUANTS = DType.Q4_K, DType.Q5_K, DType.Q6_K
_FORMATS = {
    ValueType.UINT8: "B", ValueType.INT8: "b", ValueType.UINT16: "H", ValueType.INT16: "h", ValueType.UINT32: "I",
    ValueType.INT32: "i", ValueType.FLOAT32: "f", ValueType.BOOL: "B", ValueType.UINT64: "Q", ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}  # fmt: skip
_OF_ARRAYS = {np.dtype(form).str: kind for kind, form in _FORMATS.items() if kind is not ValueType.BOOL}
_DROPPED = ("split.",)  # what is written is one file


@final
@dataclass(frozen=True)
class Output:
    """A model, the file that it is written to, and the dtypes of its weights."""

    model: ModelFile
    target: Path
    recipe: QuantizationRecipe

    @property
    def infos(self) -> list[TensorInfo]:
        return list(self.model.tensors.values())

    @cached_property
    def dtypes(self) -> dict[str, DType]:
        return {info.name: self.recipe.dtype_of(info, self.model) for info in self.infos}


def write_model(
    model: ModelFile,
    target: Path,
    recipe: QuantizationRecipe,
    *,
    force: bool = False,
    progress: Callable[[float], None] = lambda _: None,
    cancel: Cancel | None = None,
) -> dict[str, int]:
    """Write a model to a GGUF file, its weights as the recipe says; gives the bytes of the weights by dtype.

    Beside a chunk of each, no weights are in memory. The file appears when it is whole; without `force`, no file
    is replaced.
    """
    return write_models([Output(model, target, recipe)], force=force, progress=progress, cancel=cancel)


def write_models(
    outputs: Sequence[Output],
    *,
    force: bool = False,
    progress: Callable[[float], None] = lambda _: None,
    cancel: Cancel | None = None,
) -> dict[str, int]:
    """Write several models as `write_model` writes one. The files appear when all are whole."""
    for output in outputs:
        _check(output, force=force)
    total, done = sum(info.nbytes for output in outputs for info in output.infos) or 1, 0
    with (
        replacing(*(output.target for output in outputs)) as files,
        ThreadPoolExecutor(usable_cores()) as workers,
    ):
        for output, file in zip(outputs, files, strict=True):
            _write_header(file, output)
            progress(done / total)
            for written in _write_weights(file, output, workers):
                check_cancel(cancel)
                done += written
                progress(min(done / total, 1.0))
        for output in outputs:
            output.model.check_unchanged()
    progress(1.0)
    return bytes_by_dtype((info, output.dtypes[info.name]) for output in outputs for info in output.infos)


def _write_weights(file: BinaryIO, output: Output, workers: ThreadPoolExecutor) -> Iterator[int]:
    """Write weights chunk by chunk; gives the bytes that each chunk was made of, and 0 first."""
    yield 0
    dtypes = output.dtypes
    for info in output.infos:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for chunk in output.model.chunks(info.name):
            file.writelines(part.data for part in _converted(chunk, info, dtypes[info.name], workers))
            yield chunk.size


def _check(output: Output, *, force: bool) -> None:
    """Refuse a file that must stay; say what gets worse."""
    model, target, dtypes = output.model, output.target, output.dtypes
    if target.exists():
        if any(target.samefile(path) for path in model.paths if path.is_file()):
            raise OptionError(f"{target} is the model that is read; write to another file")
        if not force:
            raise OptionError(f"{target} exists; take another name, or --force to replace it")
    quantized = [info for info in output.infos if info.dtype.is_quantized]
    again = [info.name for info in quantized if not is_lossless(info.dtype, dtypes[info.name])]
    if again:
        log.warning(
            "%s: %d tensors are quantized already, such as %s: the result is worse than of the original weights",
            model.path, len(again), again[0],
        )  # fmt: skip


def _write_header(file: BinaryIO, output: Output) -> None:
    config, infos, dtypes = output.model.metadata, output.infos, output.dtypes
    pairs = [_pair(config, key) for key in config if not key.startswith(_DROPPED) and key not in _OWN]
    own = {"general.file_type": output.recipe.file_type, "general.quantization_version": 2}
    pairs += [_text(key) + struct.pack("<II", ValueType.UINT32, value) for key, value in own.items()]
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)))
    file.writelines(pairs)
    offset = 0
    for info in infos:
        dtype = dtypes[info.name]
        shape = info.shape or (1,)
        file.write(_text(info.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, dtype, offset))
        offset += -(-nbytes_of(info, dtype) // ALIGNMENT) * ALIGNMENT


_OWN = ("general.file_type", "general.quantization_version", "general.alignment")


def _pair(config: Config, key: str) -> bytes:
    value, kind = config[key], config.value_type(key)
    if isinstance(value, Strings | list | tuple | np.ndarray):
        return _text(key) + struct.pack("<I", ValueType.ARRAY) + _array(key, value, kind)
    kind = kind if kind is not None else _kind(value)
    if kind is ValueType.STRING:
        return _text(key) + struct.pack("<I", kind) + _text(value)
    return _text(key) + struct.pack(f"<I{_FORMATS[kind]}", kind, value)


def _array(key: str, values: Any, kind: ValueType | None) -> bytes:
    if isinstance(values, np.ndarray):
        if values.dtype == np.bool_:
            kind = ValueType.BOOL
        stored = kind or _OF_ARRAYS[values.dtype.newbyteorder("<").str]
        return struct.pack("<IQ", stored, len(values)) + values.tobytes()
    found = kind or (_kind(values[0]) if len(values) else ValueType.INT32)
    if found is ValueType.STRING:
        return struct.pack("<IQ", found, len(values)) + b"".join(map(_text, values))
    if found is ValueType.UINT32:
        found = ValueType.INT32 if max(values) < 1 << 31 else found
    return struct.pack(f"<IQ{len(values)}{_FORMATS[found]}", found, len(values), *values)


def _kind(value: object) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        signed = value < 0 or isinstance(value, SignedNumber)
        small = ValueType.INT32 if signed else ValueType.UINT32
        return small if -(1 << 31) <= value < 1 << 32 else ValueType.INT64
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str):
        return ValueType.STRING
    raise BackbayError(f"GGUF has no type for {type(value).__name__}")


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


# -- weights -------------------------------------------------------------------------------------------------


def _converted(chunk: Bytes, info: TensorInfo, dtype: DType, workers: ThreadPoolExecutor) -> Iterator[Bytes]:
    """The bytes of some rows in another dtype, in order."""
    if dtype is info.dtype:
        yield np.ascontiguousarray(chunk)
        return
    row = info.shape[0]
    rows = chunk.reshape(-1, info.dtype.row_size(row))
    step = max(PIECE // row, 1)
    pieces = (rows[begin : begin + step] for begin in range(0, len(rows), step))
    while batch := list(islice(pieces, 64)):
        yield from workers.map(lambda piece: _piece(piece, info, dtype), batch)


def _piece(rows: Bytes, info: TensorInfo, dtype: DType) -> Bytes:
    numbers = read_numbers(rows, info.dtype)
    if not np.isfinite(numbers).all():
        raise BackbayError(f"{info.name} has numbers that are not finite, which no quantization can hold")
    made = encode_rows(numbers, dtype)
    if dtype is DType.F16 and np.isinf(made.view(np.float16)).any():
        raise BackbayError(f"{info.name} has numbers that are too large for f16; take bf16 or f32")
    return made


def read_numbers(rows: Bytes, dtype: DType) -> NDArray[np.float32]:
    if not dtype.is_quantized:
        rows = numpy_view(np.ascontiguousarray(rows).reshape(-1), dtype).reshape(len(rows), -1)
    return np.ascontiguousarray(decode(rows, dtype), np.float32)


def encode_rows(numbers: NDArray[np.float32], dtype: DType) -> Bytes:
    """Rows of numbers as bytes of a dtype."""
    if dtype in _K_QUANTS:
        return k_quants.quantize(numbers.reshape(-1, k_quants.BLOCK), dtype).reshape(-1)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(encode(numbers, dtype)).reshape(-1).view(np.uint8)
