"""Writing files: beside the old files first, then in their places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from ..errors import BackbayError, reason_of

_NUMBERS = count()  # threads of one process may write the same file


@contextmanager
def replacing(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """Temporary paths, to write to in the block. If the block succeeds, they take the places of `paths`, else they vanish.

    So an old file stays whole until the new one is, a link is replaced and not followed, and a full disk leaves
    everything as it was. BackbayError names the files and the cause.
    """
    targets, own = [Path(path) for path in paths], f"{os.getpid()}-{next(_NUMBERS)}"
    asides = tuple(target.with_name(f".{target.name}.{own}.partial") for target in targets)
    try:
        yield asides
        for aside, target in zip(asides, targets, strict=True):
            os.replace(aside, target)  # noqa: PTH105
    except OSError as error:
        names = " and ".join(map(str, targets))
        raise BackbayError(f"{names} cannot be written: {error.strerror or reason_of(error)}") from error
    finally:
        for aside in asides:
            with suppress(OSError):  # where nothing can be written, nothing can be removed
                aside.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as (aside,):
        aside.write_text(text, encoding="utf-8")
