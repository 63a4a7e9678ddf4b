"""Our reader against that of the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

import backbay.gguf


def plain(value: Any) -> Any:
    """A value in the form in which gguf.GGUFReader gives it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, backbay.gguf.Strings) else value


def agree(path: Path) -> None:
    """Both readers find the same in a file."""
    oracle = GGUFReader(path)
    with backbay.gguf.open(path) as file:
        fields = {name: field for name, field in oracle.fields.items() if not name.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for name, field in fields.items():
            assert repr(plain(file.metadata[name])) == repr(field.contents()), name  # NaN is NaN
        assert file.alignment == oracle.alignment
        assert list(file.tensors) == [each.name for each in oracle.tensors]
        for each, info in zip(oracle.tensors, file.tensors.values(), strict=True):
            assert int(info.dtype) == int(each.tensor_type)
            assert info.shape == tuple(each.shape.tolist())
            assert (info.offset, info.nbytes) == (each.data_offset, each.n_bytes)
            assert file.data(info.name).tobytes() == each.data.tobytes()
