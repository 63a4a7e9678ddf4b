"""Opening adapters: files in GGUF, and folders of PEFT."""

from __future__ import annotations

import os
from pathlib import Path

from backbay import ModelFileError, OptionError
from backbay.gguf import ModelFile

from .adapter import Adapter, Matrices
from .gguf_file import read_gguf
from .peft_folder import read_peft


def open_adapter(path: str | os.PathLike[str], model: ModelFile, matrices: Matrices) -> Adapter:
    """Read an adapter; ModelFileError if it is none, is not supported, or is not one of this model."""
    try:
        where = Path(os.fspath(path))
    except (TypeError, ValueError):
        raise OptionError(f"an adapter is the path of a file or a folder, got {path!r}") from None
    if not where.exists():
        raise ModelFileError(where, None, "an adapter: a GGUF file, or a folder of PEFT", "nothing")
    adapter = read_peft(where, model) if where.is_dir() else read_gguf(where, model)
    if not adapter.factors:
        raise ModelFileError(where, None, "an adapter that changes a matrix", "one without factors")
    adapter.check(matrices)
    return adapter
