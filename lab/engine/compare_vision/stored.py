"""The files of the tests: each encoder, packed, and the reference's rows of a few pictures."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import packed_folders
from kinds import Kind
from truths import picture, truth

SIZES = {"square": (30, 30), "wide": (20, 43), "tiny": (9, 5)}
AS_OTHERS = (
    *("llava-new", "llava16-old", "llama4-chunked-single"),
    *("qwen3vlmoe-projector", "qwen3vlmoe-single", "qwen35-projector"),
    *("qwen35moe-projector", "qwen35moe-single", "smolvlm-projector"),
    *("minicpmv-wide-projector", "ldp-published-projector", "ldpv2-published-projector"),
)
"""Kinds and layouts of whose encoders another file tells as much."""


def store_folder(folder: Path, projector: Path, name: str, kind: Kind, target: Path) -> None:
    """Write a packed folder of transformers, the encoder in a file that others made of it, and the reference's rows."""
    store(projector, name, kind, target / name)
    packed_folders.store_folder(folder, target / f"{name}.hf.xz")


def store(path: Path, name: str, kind: Kind, target: Path) -> None:
    """Write the packed encoder of a file, without a text model, and the reference's rows."""
    target.parent.mkdir(parents=True, exist_ok=True)
    alone = _alone(path, target.with_suffix(".gguf"))
    target.with_suffix(".gguf.xz").write_bytes(lzma.compress(alone.read_bytes(), preset=9))
    alone.unlink()
    found = {}
    for seed, (size, extent) in enumerate(SIZES.items()):
        each = truth(kind, picture(extent, seed))
        found |= {f"{size}.rgb": each.rgb, f"{size}.rows": each.rows.astype(np.float16)}
    np.savez_compressed(target.parent / f"{name}.npz", **found)


def _alone(path: Path, target: Path) -> Path:
    """The encoder of a file."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(path)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.", "tokenizer.")):
            of = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=of)
    for tensor in reader.tensors:
        if tensor.name.startswith(("v.", "mm.", "resampler.", "model.image_newline")):
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
