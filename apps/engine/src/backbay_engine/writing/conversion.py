"""Writing a model to a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from backbay import OptionError
from backbay.discovery import open_model
from backbay.gguf import nearest
from backbay.internals import require_cancel
from backbay.plugin import Cancel

from .gguf_file import write_model
from .recipes import RECIPES


def convert(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dtype: str = "f16",
    *,
    force: bool = False,
    progress: Callable[[float], None] | None = None,
    cancel: Cancel | None = None,
) -> dict[str, int]:
    """Write a model to a GGUF file, which llama.cpp loads too; gives the bytes of its weights by dtype.

    model    a folder of Hugging Face's transformers, a GGUF file, or a name such as hf:org/name
    dtype    the dtype of most weights: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0
    force    replace the file if it exists

    Weights are read and written part by part. The file appears when it is whole.
    """
    recipe = RECIPES.get(str(dtype).lower())
    if recipe is None:
        raise OptionError(
            f"dtype must be one of {', '.join(RECIPES)}, got {dtype!r}{nearest(str(dtype), RECIPES)}"
        )
    require_cancel(cancel)
    with open_model(model) as opened:
        show = progress or (lambda _: None)
        return write_model(opened, Path(target), recipe, force=force, progress=show, cancel=cancel)
