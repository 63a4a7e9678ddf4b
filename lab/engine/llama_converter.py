"""llama.cpp's converter: from a folder of transformers to a model file in f32."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

UNKNOWN, CONTROL, NORMAL = 2, 3, 1  # kinds of tokens


def convert(
    folder: Path,
    target: Path,
    converter: Path,
    prepare: Callable[[Any], None],
    *,
    projector: bool = False,
    predicting: bool = False,
) -> Path:
    """Write the text model, or the projector; `prepare` may change the converter's model before it is written.

    predicting  with the blocks that predict further tokens
    """
    sys.path[:0] = [path for path in (str(converter / "gguf-py"), str(converter)) if path not in sys.path]
    import conversion
    import gguf

    logging.getLogger("hf-to-gguf").setLevel(logging.ERROR)
    logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
    with torch.inference_mode():
        base = conversion.base.ModelBase
        parameters = base.load_hparams(folder, False)
        which = conversion.base.ModelType.MMPROJ if projector else conversion.base.ModelType.TEXT
        name = conversion.get_model_architecture(parameters, which)
        converting = conversion.get_model_class(name, projector)
        converting.no_mtp = not predicting  # some classes demand such blocks
        made = converting(folder, gguf.LlamaFileType.ALL_F32, target, model_name="small")
        prepare(made)
        made.write()
    return target
