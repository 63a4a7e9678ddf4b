"""The models that lie in a folder: GGUF files, files of whisper.cpp, folders of transformers, Hugging Face's cache, Ollama's store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from backbay import ModelFileError

from . import model_stores
from .model_stores import ModelPaths, Name

DEPTH = 3  # of folders below: LM Studio has publisher/model/file.gguf
MOST_FOLDERS = 10_000


def models_in(folder: Name) -> dict[str, ModelPaths]:
    """The models in a folder, by name. Only names of files are read, and how a *.bin begins; ModelFileError if the folder cannot be."""
    root = Path(folder)
    try:
        children = sorted(each.name for each in root.iterdir())
    except OSError as error:
        raise ModelFileError(folder, None, "a readable folder", error.strerror or str(error)) from None
    if any(each.startswith("models--") for each in children):
        found = _in_cache(root, children)
    elif {"manifests", "blobs"} <= set(children):
        found = _in_store(root)
    else:
        found = _in_folder(root)
    return dict(sorted(found))


def _in_cache(cache: Path, children: list[str]) -> Iterator[tuple[str, ModelPaths]]:
    for each in children:
        if each.startswith("models--"):
            name = each.removeprefix("models--").replace("--", "/")
            try:
                snapshot = model_stores.snapshot_of(name, cache / each, "main")
            except (ModelFileError, OSError):
                continue  # a download that has only begun
            found = dict(_in_folder(snapshot)).values()
            for located in found:  # the only model has the repository's name; of several, each has its own
                yield name if len(found) == 1 else f"{name}/{Path(located.path).name}", located


def _in_store(store: Path) -> Iterator[tuple[str, ModelPaths]]:
    for name, manifest in model_stores.manifest_names(store / "manifests"):
        try:
            located = model_stores.ollama_layers(store, manifest)
        except (ModelFileError, OSError):
            continue
        if Path(located.path).exists():
            yield name, located


def _in_folder(root: Path) -> Iterator[tuple[str, ModelPaths]]:
    """A file's name is its stem; if another file has the same stem, its path below the folder."""
    taken: set[str] = set()
    for folder, files in _folders(root):
        if "config.json" in files and any(each.endswith(".safetensors") for each in files):
            yield _free(folder.name, folder, root, taken), ModelPaths(folder)
            continue
        found = model_stores.model_files(folder / each for each in sorted(files))
        models, projectors = model_stores.models_and_projectors(found)
        for path in models:
            located = model_stores.locate_in(path, models, projectors)
            yield _free(located.stem, path.parent / located.stem, root, taken), located


def _free(name: str, path: Path, root: Path, taken: set[str]) -> str:
    chosen = name if name not in taken else path.relative_to(root).as_posix()
    taken.add(chosen)
    return chosen


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    for seen, (folder, below, files) in enumerate(os.walk(root)):
        if seen >= MOST_FOLDERS:
            return
        path = Path(folder)
        below.sort()
        if len(path.relative_to(root).parts) >= DEPTH:
            below.clear()
        yield path, files
