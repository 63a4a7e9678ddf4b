"""Checkpoints of other programs: folders of Hugging Face's transformers, files of whisper.cpp, and the places where models are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backbay import gguf
from backbay.discovery import open_model
from backbay.gguf import ModelFile

from .listing import models_in
from .model_stores import ModelPaths, Name, locate, projector_beside
from .whisper_file import is_whisper_file, open_whisper

__all__ = ["ModelPaths", "locate", "models_in", "open_checkpoint", "open_parts", "projector_beside"]


def open_checkpoint(path: Name, only: Callable[[str], bool] | None = None) -> ModelFile | None:
    """Open a folder, a file of whisper.cpp, or a model by its name in a place of another program; None if the path is
    none of these.
    """
    located = locate(path)
    where = Path(located.path)
    if is_whisper_file(where):
        return open_whisper(where, only)
    if located.path is path:
        return None
    if where.is_dir():
        from .transformers.folder import open_folder

        return open_folder(where, only)
    return gguf.open(where, only)


def open_parts(path: Name) -> tuple[ModelFile | None, ModelFile | None]:
    """Open a model as llama.cpp's files: its text, None if it has none, and the projector of its encoder, None if it has
    none beside the text.
    """
    where = Path(locate(path).path)
    if not where.is_dir():
        return open_model(path), None
    from .transformers import folder

    return folder.open_parts(where)
