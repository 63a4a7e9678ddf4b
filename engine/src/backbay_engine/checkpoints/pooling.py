"""How a model of vectors pools: from the files of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backbay import ModelFileError

from .json_files import parse, read_bytes, read_object
from .settings import Keys

MODULES = "modules.json"
MODES = {"mean": 1, "cls": 2, "lasttoken": 3}
"""The numbers of llama.cpp."""
FLAGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}


def pooling_keys(folder: Path) -> Keys:
    path = folder / MODULES
    if not path.exists():
        return {}
    modules = parse(path, read_bytes(path))
    own = (
        next((module for module in modules if _type(module).endswith("Pooling")), None)
        if isinstance(modules, list)
        else None
    )
    if own is None:
        return {}
    at = str(own.get("path", ""))
    if Path(at).is_absolute() or ".." in Path(at).parts or "\0" in at:
        raise ModelFileError(path, None, "a path within the folder", repr(at))
    config = read_object(folder / at / "config.json")
    found = next((number for flag, number in FLAGS.items() if config.get(flag) is True), None)
    found = found or MODES.get(str(config.get("pooling_mode")))
    if found is None:
        raise ModelFileError(
            folder / at / "config.json", None, "pooling by mean, cls or lasttoken", "another one"
        )
    return {"pooling_type": found}


def _type(module: Any) -> str:
    return str(module.get("type", "")) if isinstance(module, dict) else ""
