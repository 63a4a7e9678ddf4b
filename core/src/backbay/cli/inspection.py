"""The contents of a model file: its metadata, its tensors, and totals by dtype. The weights are not read."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay.discovery.opening import open_model
from backbay.gguf import ModelFile, TensorInfo
from backbay.memory.report import human_bytes

from .output import add_json, say, say_json, table

MODEL_HELP = "a GGUF file (of a split model, any of its files), a folder of transformers, or a name such as hf:org/name"
SHOWN = 6  # elements of an array
TEXT = 120  # characters of a string


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", help=MODEL_HELP)
    parser.add_argument("--full", action="store_true", help="do not shorten arrays and strings")
    add_json(parser)


def run(args: Namespace) -> int:
    with open_model(args.file) as model:
        if args.json:
            say_json(_as_dict(model, full=args.full))
        else:
            _print(model, full=args.full)
    return 0


def _print(model: ModelFile, *, full: bool) -> None:
    form = f"GGUF version {model.version}, alignment {model.alignment}"
    if not model.version:
        form = "safetensors" if model.path.is_dir() else "read as a GGUF file"
    say(f"{', '.join(map(str, model.paths))}: {form}")
    if (seen := _sees(model)) is not None:
        properties = ", ".join(f"{name} {value}" for name, value in seen.items())
        say(f"sees pictures: {properties}".replace("_", " "))
    say()
    rows = [(key, _brief(model.metadata[key], full=full)) for key in model.metadata]
    say(table(("key", "value"), rows))
    say()
    tensors = [
        (t.name, str(t.dtype), " x ".join(map(str, t.shape)) or "scalar", human_bytes(t.nbytes))
        for t in model.tensors.values()
    ]
    say(table(("tensor", "dtype", "shape", "size"), tensors, right=(2, 3)))
    say()
    totals = [
        (dtype, str(count), f"{elements:,}", human_bytes(nbytes), f"{share:.1%}")
        for dtype, count, elements, nbytes, share in _totals(list(model.tensors.values()))
    ]
    say(table(("dtype", "tensors", "elements", "size", "share"), totals, right=(1, 2, 3, 4)))


def _sees(model: ModelFile) -> dict[str, Any] | None:
    """What the file's encoder of pictures takes, as far as metadata say; None if the file has none."""
    if not any(name.startswith("v.") for name in model.tensors):
        return None
    metadata = model.metadata
    own = metadata.get("general.architecture") != "clip"
    prefix = f"{metadata.architecture}.vision." if own else "clip.vision."
    kind = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type", "mlp"))
    names = ("image_size", "patch_size", "block_count", "embedding_length")
    known = {name: metadata[prefix + name] for name in names if prefix + name in metadata}
    return {"encoder": metadata.architecture if own else kind, **known}


def _totals(tensors: Sequence[TensorInfo]) -> list[tuple[str, int, int, int, float]]:
    """A row for each dtype, the largest first, and a row for all: tensors, elements, bytes, share of the bytes."""
    whole = sum(t.nbytes for t in tensors)

    def row(name: str, some: Sequence[TensorInfo]) -> tuple[str, int, int, int, float]:
        elements, nbytes = sum(math.prod(t.shape) for t in some), sum(t.nbytes for t in some)
        return name, len(some), elements, nbytes, nbytes / whole if whole else 0.0

    rows = [row(str(dtype), [t for t in tensors if t.dtype is dtype]) for dtype in {t.dtype for t in tensors}]
    return [*sorted(rows, key=lambda row: (-row[3], row[0])), row("all", tensors)]


def _brief(value: Any, *, full: bool) -> str:
    """A value on one line; long strings and arrays are shortened."""
    if isinstance(value, str):
        line = value.replace("\n", "\\n")
        return line if full or len(line) <= TEXT else f"{line[:TEXT]}... ({len(value)} characters)"
    if not isinstance(value, (Sequence, np.ndarray)):
        return str(value)
    shown = list(value if full else value[:SHOWN])
    dots = ", ..." if len(value) > len(shown) else ""
    items = ", ".join(repr(item) if isinstance(item, str) else str(item) for item in shown)
    return f"[{items}{dots}] ({len(value)})"


def _as_dict(model: ModelFile, *, full: bool) -> dict[str, Any]:
    tensors = [
        {"name": t.name, "dtype": str(t.dtype), "shape": list(t.shape), "offset": t.offset, "nbytes": t.nbytes,
         "file": str(t.path)}
        for t in model.tensors.values()
    ]  # fmt: skip
    names = ("dtype", "tensors", "elements", "nbytes", "share")
    return {
        "files": [str(path) for path in model.paths],
        "version": model.version,
        "alignment": model.alignment,
        "pictures": _sees(model),
        "metadata": {key: _plain(model.metadata[key], full=full) for key in model.metadata},
        "tensors": tensors,
        "totals": [dict(zip(names, row, strict=True)) for row in _totals(list(model.tensors.values()))],
    }


def _plain(value: Any, *, full: bool) -> Any:
    """A value for JSON: a long array as its length and its first elements, infinities and NaN as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        return value
    shown = value if full or len(value) <= SHOWN else value[:SHOWN]
    items = [_plain(item, full=full) for item in (shown.tolist() if isinstance(shown, np.ndarray) else shown)]
    return items if len(items) == len(value) else {"length": len(value), "first": items}
