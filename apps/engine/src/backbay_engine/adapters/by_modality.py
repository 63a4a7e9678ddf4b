"""The adapters that a model brings along: one for prompts with pictures, and one for prompts with sound alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from backbay.gguf import ModelFile

from ..encoders.contract import Modality
from .peft_folder import CONFIG

NAMES: Final[Mapping[Modality, str]] = {"image": "vision", "audio": "speech"}
"""The names, the first of which that fits a prompt is its adapter."""
ARCHITECTURES: Final = ("phi4mm",)


def own_adapters(model: ModelFile) -> dict[str, Path]:
    """The folders of PEFT in a model's folder, by the names of their adapters; none for models that have no such ones."""
    if model.metadata.architecture not in ARCHITECTURES:
        return {}
    folders = {name: Path(model.path) / f"{name}-lora" for name in NAMES.values()}
    return {name: folder for name, folder in folders.items() if (folder / CONFIG).is_file()}


def adapter_name_of(modalities: Collection[Modality]) -> str | None:
    """The name of the adapter of a prompt with these modalities; None: it has neither pictures nor sound."""
    return next((name for modality, name in NAMES.items() if modality in modalities), None)
