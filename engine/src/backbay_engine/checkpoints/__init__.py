"""Checkpoints of other programs: folders of Hugging Face's transformers, and the places where models are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from backbay import gguf
from backbay.gguf import ModelFile

from .places import Located, Name, locate, model_in

__all__ = ["Located", "locate", "open_checkpoint"]


def open_checkpoint(path: Name, only: Callable[[str], bool] | None = None) -> ModelFile | None:
    """Open a folder, or a model by its name in a place of another program; None if the path is neither."""
    located = locate(path)
    if located.path is path and not os.path.isdir(path):  # noqa: PTH112  a text that no path can be is no folder
        return None
    where = Path(located.path)
    if where.is_dir() and not (where / "config.json").exists():
        where = Path(model_in(where).path)
    if where.is_dir():
        from .folder import open_folder

        return open_folder(where, only)
    return gguf.open(where, only)
