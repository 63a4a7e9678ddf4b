"""Families of models, by the names of transformers' classes: ours, and those that other packages declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Final, cast

from backbay import BackbayError, ModelFileError
from backbay.discovery import Declared, conflict, declared
from backbay.gguf import nearest
from backbay.internals import raise_if_starved

from ..family import Families, Family
from ..settings import Settings
from . import decoders, delta_rules, encoders, experts, gemma, recurrent

GROUP: Final = "backbay.checkpoints"
"""The entry-point group in which packages declare families."""
FAMILIES: Families = {
    **decoders.FAMILIES,
    **experts.FAMILIES,
    **gemma.FAMILIES,
    **recurrent.FAMILIES,
    **delta_rules.FAMILIES,
    **encoders.FAMILIES,
}


def family_of(settings: Settings) -> Family:
    """The family of a folder's model; ModelFileError names those that are known."""
    name, further = settings.architecture, declared(GROUP)
    found = FAMILIES.get(name)
    if points := further.get(name):
        found = _declared_family(name, points, taken=found is not None)
    if found is None:
        known = sorted({*FAMILIES, *further})
        expected = (
            f"a class of transformers that can be read: {', '.join(known)}; for others, convert the model "
            f"with llama.cpp's convert_hf_to_gguf.py"
        )
        raise ModelFileError(settings.path, None, expected, f"{name!r}{nearest(name, known)}")
    return found if isinstance(found, Family) else found(settings)


def _declared_family(
    name: str, points: Sequence[Declared], *, taken: bool
) -> Family | Callable[[Settings], Family]:
    """Import a family, or the function that chooses one; BackbayError if there are several, or if it is broken."""
    origins = [point.origin for point in points]
    if taken:
        origins.insert(0, f"backbay-engine {version('backbay-engine')}")
    if len(origins) > 1:
        raise BackbayError(conflict(f"family {name!r}", origins))
    what = f"family {name!r} of {origins[0]}"
    try:
        found = points[0].load()
    except (Exception, SystemExit) as error:
        raise_if_starved(error, f"importing {what}")
        raise BackbayError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(found, Family):
        return found
    if callable(found) and not isinstance(found, type):
        return cast("Callable[[Settings], Family]", found)
    raise BackbayError(
        f"{what}: {found!r} is neither a backbay_engine.plugin.Family nor a function from Settings to one"
    )
