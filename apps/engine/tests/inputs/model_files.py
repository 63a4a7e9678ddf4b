"""The small models of the tests, and changed copies in f32: other tensors, other metadata."""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data" / "models"
KINDS = DATA.parent / "kinds"
NAMES = sorted(path.stem for path in DATA.glob("*.gguf"))
KIND_NAMES = sorted(path.stem for path in KINDS.glob("*.npz"))


def stored(name: str) -> Path:
    return DATA / f"{name}.gguf"


def unpacked(name: str, folder: Path) -> Path:
    """The stored file of a kind, in f32; its weights have few values, so that it is packed well."""
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((KINDS / f"{name}.gguf.xz").read_bytes()))
    return path


def unpacked_folder(name: str, folder: Path, store: Path = KINDS) -> Path:
    """The stored folder of a kind, as transformers wrote it."""
    packed = BytesIO(lzma.decompress((store / f"{name}.hf.xz").read_bytes()))
    with tarfile.open(fileobj=packed) as archive:
        archive.extractall(folder / name, filter="data")
    return folder / name


def changed(
    source: str | Path,
    target: Path,
    *,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
    metadata: Mapping[str, Any] | None = None,
    architecture: str | None = None,
) -> Path:
    """A copy of a model in f32, with these tensors and metadata; None removes an entry."""
    reader = gguf.GGUFReader(stored(source) if isinstance(source, str) else source)
    writer = gguf.GGUFWriter(target, architecture or reader.fields["general.architecture"].contents())
    held = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    values = {
        field.name: (field.contents(), *field.types, None)[:3]
        for field in reader.fields.values()
        if not field.name.startswith(("GGUF.", "general.architecture"))
    }
    values |= {key: None if value is None else _typed(value) for key, value in (metadata or {}).items()}
    for key, value in values.items():
        if value is not None:
            writer.add_key_value(key, value[0], value[1], sub_type=value[2])
    for tensor_name, array in {**held, **(tensors or {})}.items():
        if array is not None:
            writer.add_tensor(tensor_name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def tensors_of(source: str | Path) -> dict[str, NDArray[np.float32]]:
    reader = gguf.GGUFReader(stored(source) if isinstance(source, str) else source)
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


def _typed(value: Any) -> tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]:
    kind = gguf.GGUFValueType.get_type(value)
    return value, kind, gguf.GGUFValueType.get_type(value[0]) if kind is gguf.GGUFValueType.ARRAY else None
