"""Families of models, by the names of transformers' classes: ours, and those that other packages declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Final, cast

from backbay import BackbayError, ModelFileError
from backbay.discovery import PluginEntry, conflict, declared
from backbay.gguf import nearest
from backbay.internals import load_declared

from ..config_json import Settings
from ..family_mapping import Families, Family
from . import (
    decoders,
    delta_rules,
    encoders,
    experts,
    gemma,
    minicpm_vision,
    mllama,
    phi4,
    qwen_vision,
    recurrent,
    sound,
    texts_beside_encoders,
    vision,
    whisper,
)

GROUP: Final = "backbay.checkpoints"
FAMILIES: Families = {
    **decoders.FAMILIES,
    **experts.FAMILIES,
    **gemma.FAMILIES,
    **recurrent.FAMILIES,
    **delta_rules.FAMILIES,
    **encoders.FAMILIES,
    **whisper.FAMILIES,
    **texts_beside_encoders.FAMILIES,
    **mllama.FAMILIES,
    **sound.FAMILIES,
    **phi4.FAMILIES,
    **minicpm_vision.FAMILIES,
}
PROJECTORS: Families = {
    **vision.PROJECTORS,
    **qwen_vision.PROJECTORS,
    **minicpm_vision.PROJECTORS,
    **sound.PROJECTORS,
}


def family_of(settings: Settings) -> Family:
    """The family of a folder's model; ModelFileError names those that are known."""
    name, further = settings.architecture, declared(GROUP)
    found = FAMILIES.get(name)
    if points := further.get(name):
        found = _declared_family(name, points, taken=found is not None)
    if found is None and is_encoder_alone(settings):
        expected = (
            "a model with a text, which stands in a folder of its own; `backbay convert` writes the projector"
        )
        raise ModelFileError(settings.path, None, expected, f"{name!r}, an encoder alone")
    if found is None:
        known = sorted({*FAMILIES, *further})
        expected = (
            f"a class of transformers that can be read: {', '.join(known)}; for others, convert the model "
            f"with llama.cpp's convert_hf_to_gguf.py"
        )
        raise ModelFileError(settings.path, None, expected, f"{name!r}{nearest(name, known)}")
    return found if isinstance(found, Family) else found(settings)


def is_encoder_alone(settings: Settings) -> bool:
    """Whether a folder holds an encoder for a text that stands in another folder."""
    return settings.architecture in PROJECTORS and settings.architecture not in FAMILIES


def projector_of(settings: Settings) -> Family | None:
    """The family of the encoder that a projector file holds; None if the model has none that is known."""
    found = PROJECTORS.get(settings.architecture)
    return found if found is None or isinstance(found, Family) else found(settings)


def _declared_family(
    name: str, points: Sequence[PluginEntry], *, taken: bool
) -> Family | Callable[[Settings], Family]:
    """Import a family, or the function that chooses one; BackbayError if there are several, or if it is broken."""
    if taken:
        origins = [f"backbay-engine {version('backbay-engine')}", *(point.origin for point in points)]
        raise BackbayError(conflict(f"family {name!r}", origins))
    found = load_declared("backbay_checkpoint", f"family {name!r}", points)
    if isinstance(found, Family):
        return found
    if callable(found) and not isinstance(found, type):
        return cast("Callable[[Settings], Family]", found)
    raise BackbayError(
        f"family {name!r} of {points[0].origin}: {found!r} is neither a backbay_engine.plugin.Family nor a function from Settings to one"
    )
