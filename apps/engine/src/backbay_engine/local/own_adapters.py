"""Adapters by modality: one for prompts with pictures, and one for prompts with sound alone, of models that say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from backbay.gguf import ModelFile

from ..adapters.peft_folder import CONFIG
from ..encoders.contract import Modality

NAMES: Final[Mapping[str, Mapping[Modality, str]]] = {"phi4mm": {"image": "vision", "audio": "speech"}}
"""The names of adapters by architecture; the first that fits a prompt is the prompt's."""


def own_adapters(model: ModelFile) -> dict[str, Path]:
    """The folders of PEFT that lie in a model's folder for its modalities, by name."""
    names = NAMES.get(model.metadata.architecture, {}).values()
    folders = {name: Path(model.path) / f"{name}-lora" for name in names}
    return {name: folder for name, folder in folders.items() if (folder / CONFIG).is_file()}


def adapter_name_of(model: ModelFile, modalities: Collection[Modality]) -> str | None:
    """The name of the adapter for a prompt with these modalities; None: it needs none."""
    names = NAMES.get(model.metadata.architecture, {})
    return next((name for modality, name in names.items() if modality in modalities), None)
