"""Adapters in GGUF, as llama.cpp's convert_lora_to_gguf.py writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from backbay import ModelFileError, gguf
from backbay.gguf import ModelFile
from backbay.internals import numpy_view

from .adapter import LARGEST_ALPHA, Adapter, AdapterFactors, Array, factor_numbers

TYPE, KIND = gguf.text("general.type"), gguf.text("adapter.type")
ARCHITECTURE, ALPHA = (
    gguf.text("general.architecture"),
    gguf.number("adapter.lora.alpha", -LARGEST_ALPHA, LARGEST_ALPHA),
)
INVOCATION: Final = "adapter.alora.invocation_tokens"
DOWN, UP = ".lora_a", ".lora_b"


def read_gguf(path: Path, model: ModelFile) -> Adapter:
    """The adapter in a GGUF file, for a model of the same architecture."""
    with gguf.open(path) as file:
        config, own = file.metadata, ARCHITECTURE.of(model.metadata)
        for key, expected in ((TYPE, "adapter"), (KIND, "lora"), (ARCHITECTURE, own)):
            if key.of(config, "model" if key is TYPE else None) != expected:
                raise key.refuse(config, f"{expected!r}, as an adapter for this model has it,")
        if INVOCATION in config:
            raise config.mistyped(INVOCATION, "an adapter that changes all tokens", config[INVOCATION])
        alpha = ALPHA.of(config)
        pairs = {name.removesuffix(DOWN) for name in file.tensors if name.endswith(DOWN)}
        for name, info in file.tensors.items():
            target = name.removesuffix(DOWN).removesuffix(UP)
            if target not in pairs or f"{target}{UP}" not in file.tensors:
                expected = "pairs of tensors NAME.lora_a and NAME.lora_b"
                raise ModelFileError(path, info.declared_at, expected, repr(name))
        return Adapter(path, {name: _factors(file, name, alpha) for name in sorted(pairs)})


def _factors(file: ModelFile, name: str, alpha: float) -> AdapterFactors:
    down, up = _numbers(file, name + DOWN), _numbers(file, name + UP)
    return AdapterFactors.scaled(down, up, alpha / max(up.shape[-1], 1) if alpha else 1.0)


def _numbers(file: ModelFile, name: str) -> Array:
    """A tensor in NumPy's order of dimensions."""
    info = file.tensors[name]
    data, shape = file.data(name), info.shape[::-1]
    if len(shape) not in (2, 3) or not (info.dtype.is_float or info.dtype.is_quantized):
        expected = f"a matrix of floats, or one for each expert, as {name!r}"
        raise ModelFileError(file.path, info.declared_at, expected, f"{info.dtype}{list(info.shape)}")
    stored = (*shape[:-1], -1) if info.dtype.is_quantized else shape
    return factor_numbers(numpy_view(data, info.dtype).reshape(stored), info.dtype)
