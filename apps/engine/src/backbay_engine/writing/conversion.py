"""Writing a model to GGUF files: its text, and the projector of an encoder beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, final

from backbay import OptionError
from backbay.gguf import nearest
from backbay.internals import require_cancel
from backbay.plugin import Cancel

from ..checkpoints import open_parts
from ..checkpoints.model_stores import name_of
from .completeness import require_complete
from .gguf_file import Output, write_models
from .recipes import RECIPES, projector_recipe

PROJECTOR = "mmproj-"
"""The beginning of a projector's name, by which llama.cpp's users know it."""


@final
class Conversion:
    """A model to be written: to `target`, and the projector of its encoder to `projector`, or beside the target.

    Without a target, the files are named after the model and their dtypes, in the current folder.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        target: Path | None = None,
        dtype: str = "f16",
        projector: Path | None = None,
    ) -> None:
        recipe, of_projector = RECIPES.get(dtype.lower()), projector_recipe(dtype.lower())
        if recipe is None:
            raise OptionError(
                f"dtype must be one of {', '.join(RECIPES)}, got {dtype!r}{nearest(dtype, RECIPES)}"
            )
        name = name_of(os.fspath(model)) if target is None else ""
        beside = Path(f"{name}-{of_projector.most}.gguf") if target is None else target
        target = target or Path(f"{name}-{dtype.lower()}.gguf")
        if projector is not None and projector.absolute() == target.absolute():
            raise OptionError(f"{target} cannot hold both text and projector; take another name for one")
        self.text, self.projector = open_parts(model)
        self.outputs = [Output(self.text, target, recipe)] if self.text is not None else []
        if self.projector is not None:
            beside = projector or beside.with_name(f"{PROJECTOR}{beside.name}")
            self.outputs.append(Output(self.projector, beside, of_projector))
        elif projector is not None:
            self.close()
            raise OptionError(f"{model} has no encoder that would be written to {projector}")

    def write(
        self,
        *,
        force: bool = False,
        progress: Callable[[float], None] = lambda _: None,
        cancel: Cancel | None = None,
    ) -> dict[str, int]:
        """Write the files, which appear when all are whole; gives the bytes of the weights by dtype."""
        for output in self.outputs:
            if not output.model.version:
                require_complete(output.model)
        return write_models(self.outputs, force=force, progress=progress, cancel=cancel)

    def close(self) -> None:
        for model in (self.text, self.projector):
            if model is not None:
                model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def convert(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dtype: str = "f16",
    *,
    projector: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[float], None] | None = None,
    cancel: Cancel | None = None,
) -> dict[str, int]:
    """Write a model to a GGUF file, which llama.cpp loads too; gives the bytes of its weights by dtype.

    model      a folder of Hugging Face's transformers, a GGUF file, or a name such as hf:org/name
    dtype      the dtype of most weights: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0
    projector  the file for the encoder of a model that sees or hears; without it, mmproj- and the name of `target`, beside
               it. Encoders are not quantized: their weights are f16, or f32 if `dtype` is
    force      replace the files if they exist

    Weights are read and written part by part. The files appear when they are whole.
    """
    require_cancel(cancel)
    beside = None if projector is None else Path(projector)
    with Conversion(model, Path(target), str(dtype), beside) as conversion:
        return conversion.write(force=force, progress=progress or (lambda _: None), cancel=cancel)
