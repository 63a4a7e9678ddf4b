"""Model files of all kinds: GGUF files, and what installed packages can open besides."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BackbayError
from ..memory.starvation import raise_if_starved
from .entry_points import Declared, conflict, declared

if TYPE_CHECKING:
    from ..gguf import ModelFile

GROUP = "backbay.model_files"
"""The entry-point group of openers: functions like `open_model` that return None for what they do not open."""


def open_model(path: str | os.PathLike[str], only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a model: a GGUF file, or a folder or a name that an installed package opens. Any defect is a ModelFileError.

    `only` chooses tensors by name.
    """
    from .. import gguf

    if _is_text(path) and not os.path.isfile(path):  # noqa: PTH113  any text may be a name
        for name, points in declared(GROUP).items():
            found: gguf.ModelFile | None = _opener(name, points)(path, only)
            if found is not None:
                return found
    return gguf.open(path, only)


def _opener(name: str, points: list[Declared]) -> Any:
    if len(points) > 1:
        raise BackbayError(conflict(f"the opener {name!r}", [point.origin for point in points]))
    try:
        return points[0].load()
    except Exception as error:
        what = f"the opener {name!r} of {points[0].origin}"
        raise_if_starved(error, f"importing {what}")
        raise BackbayError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error


def _is_text(path: object) -> bool:
    """Whether this may be a path or a name; what is neither is refused where files are opened."""
    try:
        return isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)
    except TypeError:
        return False
