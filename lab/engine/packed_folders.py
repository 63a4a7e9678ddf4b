"""Folders of transformers, packed for tests that open them without torch."""

from __future__ import annotations

import lzma
import tarfile
from io import BytesIO
from pathlib import Path


def store_folder(folder: Path, target: Path) -> None:
    """Write the packed folder, without model files that were made of it."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".gguf"):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, BytesIO(path.read_bytes()))
    target.write_bytes(lzma.compress(packed.getvalue(), preset=9))
