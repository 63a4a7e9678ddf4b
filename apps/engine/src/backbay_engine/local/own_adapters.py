"""Adapters by modality: one for prompts with pictures, and one for prompts with sound alone, of models that say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from backbay.gguf import ModelFile

from ..adapters import Adapter
from ..adapters.peft_folder import CONFIG, read_factors_of_model, read_peft
from ..encoders.contract import Modality

NAMES: Final[Mapping[str, Mapping[Modality, str]]] = {"phi4mm": {"image": "vision", "audio": "speech"}}
"""The names of adapters by architecture; the first that fits a prompt is the prompt's."""


def own_adapters(model: ModelFile, taken: Collection[str]) -> dict[str, Adapter]:
    """The adapters that a model brings along for its modalities, by name, without the names that are taken: in folders of PEFT
    beside it, or among its tensors.
    """
    found = dict[str, Adapter]()
    for name in NAMES.get(model.metadata.architecture, {}).values():
        folder = Path(model.path) / f"{name}-lora"
        if name in taken:
            continue
        adapter = (
            read_peft(folder, model) if (folder / CONFIG).is_file() else read_factors_of_model(name, model)
        )
        if adapter is not None:
            found[name] = adapter
    return found


def adapter_name_of(model: ModelFile, modalities: Collection[Modality]) -> str | None:
    """The name of the adapter for a prompt with these modalities; None: it needs none."""
    names = NAMES.get(model.metadata.architecture, {})
    return next((name for modality, name in names.items() if modality in modalities), None)
