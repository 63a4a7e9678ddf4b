"""The fingerprint of a model's files, which is fast to compute; all replicas must have the same."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from backbay import BackbayError
from backbay.discovery import open_model

WHOLE: Final = 32 << 20  # bytes of a file that is read as a whole
BLOCK, BLOCKS = 1 << 16, 256  # of a larger file
TEXTS: Final = (".json", ".model", ".txt", ".jinja")  # beside the weights of a checkpoint


def fingerprint(model: Path, projector: Path | None = None) -> str:
    """A number for the files of a model: of small files every byte counts, of large ones the size and samples."""
    digest = hashlib.blake2b(digest_size=16)
    for path in _files(model, projector):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for begin, length in _samples(size):
                file.seek(begin)
                digest.update(file.read(length))
    return digest.hexdigest()


def require_same(name: str, model: Path, projector: Path | None, expected: str) -> None:
    """An error unless the model is the one with which the application was deployed."""
    found = fingerprint(model, projector)
    if found != expected:
        raise BackbayError(
            f"the model {name!r} on {platform.node()} ({model}) is another than the one with which the application was "
            f"deployed: its fingerprint is {found}, not {expected}. Answers move between replicas, so all machines "
            "need the same files: copy them, or deploy the application again"
        )


def _files(model: Path, projector: Path | None) -> list[Path]:
    with open_model(model) as opened:
        paths = [Path(path) for path in opened.paths]
    beside = sorted(path for path in model.iterdir() if path.suffix in TEXTS) if model.is_dir() else []
    return [*paths, *beside, *([] if projector is None else [projector])]


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """Where a file is read, and how much."""
    if size <= WHOLE:
        yield 0, size
        return
    yield 0, WHOLE // 2  # the header of a GGUF file, with its vocabulary
    for number in range(1, BLOCKS + 1):
        yield number * (size - BLOCK) // BLOCKS, BLOCK
