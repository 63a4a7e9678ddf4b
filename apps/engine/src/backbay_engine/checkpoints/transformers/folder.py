"""A folder of Hugging Face's transformers, as a model file: with the keys and the tensors of GGUF."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from backbay import ModelFileError
from backbay.gguf import Config, Content, Derived, ModelFile, TensorInfo

from ..arrays import stored_array
from ..json_files import parse_json, read_bytes, read_object
from ..safetensors import Checkpoint, read_checkpoint
from .config_json import Keys, Settings, read_settings, usual_keys
from .families import family_of, is_encoder_alone, projector_of
from .family_mapping import Arrays, Family
from .folder_tensors import describes_encoder, folder_arrays
from .predicting_blocks import predicting_keys
from .vocabularies import vocabulary_keys

log = logging.getLogger(__name__)


def open_folder(folder: Path, only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a folder with config.json and safetensors. Its weights stay mapped; those that a model file has in another
    form are made when they are read. Of a model with an encoder in a projector file, it is the text.
    """
    settings = read_settings(folder)
    family = family_of(settings)
    settings = family.usual(settings)
    checkpoint = _checkpoint(settings)
    dense, dense_keys, contents = dense_arrays(folder)
    arrays = folder_arrays(checkpoint.tensors, family, settings) | dense
    keys = {**usual_keys(settings), **pooling_keys(folder), **dense_keys, **family.keys(settings)}
    metadata = _metadata(settings, family, "model", {**keys, **predicting_keys(keys, arrays)})
    embedding = arrays.get("token_embd.weight")
    count = embedding.shape[0] if embedding is not None and embedding.shape else 0
    metadata.setdefault(f"{family.architecture}.vocab_size", count)
    metadata |= vocabulary_keys(settings, family.architecture, count)
    return _opened(settings, [*checkpoint.contents, *contents], metadata, arrays, only)


def open_parts(folder: Path) -> tuple[ModelFile | None, ModelFile | None]:
    """Open a folder as its text, None if it holds an encoder alone, and as the projector file of its encoder, None if it
    has none that is known.
    """
    settings = read_settings(folder)
    projector = _open_projector(settings)
    try:
        return None if is_encoder_alone(settings) else open_folder(folder), projector
    except BaseException:
        if projector is not None:
            projector.close()
        raise


def _open_projector(settings: Settings) -> ModelFile | None:
    family = projector_of(settings)
    if family is None:
        if describes_encoder(settings) and not family_of(settings).tensors:
            log.warning(
                "%s: the text alone is written, as encoders of %s are not known",
                settings.folder,
                settings.architecture,
            )
        return None
    settings = family.usual(settings)
    checkpoint = _checkpoint(settings)
    arrays = folder_arrays(checkpoint.tensors, family, settings)
    metadata = _metadata(settings, family, "mmproj", family.keys(settings))
    return _opened(settings, checkpoint.contents, metadata, arrays)


def _checkpoint(settings: Settings) -> Checkpoint:
    _refuse_quantized(settings)
    return read_checkpoint(settings.folder)


def _opened(
    settings: Settings,
    contents: Iterable[Content],
    metadata: dict[str, Any],
    arrays: Arrays,
    only: Callable[[str], bool] | None = None,
) -> ModelFile:
    tensors: dict[str, TensorInfo] = {}
    derived: dict[str, Derived] = {}
    for name, array in arrays.items():
        if only is not None and not only(name):
            continue
        tensors[name], how = array.as_tensor(name)
        if how is not None:
            derived[name] = how
    for key, value in metadata.items():
        _require_text(settings, key, value)
    return ModelFile(settings.folder, contents, Config(metadata, path=settings.folder), tensors, derived)


def _metadata(settings: Settings, family: Family, kind: str, keys: Keys) -> dict[str, Any]:
    """The keys of a family, with its architecture in front; those with a slash in front have none."""
    named = {key[1:] if key[0] == "/" else f"{family.architecture}.{key}": keys[key] for key in keys}
    own = {key: _stored(value) for key, value in named.items() if value is not None}
    general = {"general.architecture": family.architecture, "general.type": kind}
    return {**general, "general.name": settings.name, **own}


def _require_text(settings: Settings, key: str, value: Any) -> None:
    """ModelFileError if a text, or one of a list, has half a surrogate pair, which JSON can spell and no UTF-8 holds."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    try:
        "".join(text for text in texts if isinstance(text, str)).encode()
    except UnicodeEncodeError as error:
        found = f"half a surrogate pair, {error.object[error.start]!r}"
        raise ModelFileError(settings.folder, None, f"Unicode text as {key}", found) from None


def _stored(value: Any) -> Any:
    """A value as a model file has it: numbers in an array."""
    if not isinstance(value, list) or not value or isinstance(value[0], str):
        return value
    kinds = {bool: np.bool_, int: np.int32, float: np.float32}
    return np.array(value, kinds[type(value[0])])


def _refuse_quantized(settings: Settings) -> None:
    method = settings.section("quantization_config").text("quant_method")
    if method and method != "mxfp4":
        expected = (
            "weights that are not quantized, or MXFP4: take the folder of the original model, or a GGUF file"
        )
        raise ModelFileError(settings.path, None, expected, f"the quantization {method!r}")


# -- what follows a model of vectors, by the files of sentence-transformers ----------------------------------


MODULES = "modules.json"
MODES = {"mean": 1, "cls": 2, "lasttoken": 3}
"""The numbers of llama.cpp."""
FLAGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
DENSE = "dense_2", "dense_3"
"""The names of the matrices in model files."""


def pooling_keys(folder: Path) -> Keys:
    """How the model pools; no key if no file says it."""
    at = next(iter(_modules(folder, "Pooling")), None)
    if at is None:
        return {}
    said = read_object(at / "config.json")
    found = next((number for flag, number in FLAGS.items() if said.get(flag) is True), None)
    found = found or MODES.get(str(said.get("pooling_mode")))
    if found is None:
        raise ModelFileError(at / "config.json", None, "pooling by mean, cls or lasttoken", "another one")
    return {"pooling_type": found}


def dense_arrays(folder: Path) -> tuple[Arrays, Keys, list[Content]]:
    """The matrices that vectors pass last, with their keys and the files that hold them."""
    arrays, keys, contents = Arrays(), Keys(), list[Content]()
    places = _modules(folder, "Dense")
    if len(places) > len(DENSE):
        raise ModelFileError(folder / MODULES, None, f"at most {len(DENSE)} dense layers", len(places))
    for name, at in zip(DENSE, places, strict=False):
        said = read_object(at / "config.json")
        kind = str(said.get("activation_function", "Tanh")).rpartition(".")[2]
        checkpoint = read_checkpoint(at)
        weight = checkpoint.tensors.get("linear.weight")
        plain = kind == "Identity" and "linear.bias" not in checkpoint.tensors
        if weight is None or not plain or not weight.info.dtype.is_float or len(weight.info.shape) != 2:
            expected = "a matrix linear.weight, without a bias and an activation"
            raise ModelFileError(at, None, expected, f"{', '.join(checkpoint.tensors)} with {kind}")
        arrays[f"{name}.weight"] = stored_array(weight.info).floats()
        keys |= {f"{name}_feat_in": weight.info.shape[0], f"{name}_feat_out": weight.info.shape[1]}
        contents += checkpoint.contents
    return arrays, keys, contents


def _modules(folder: Path, kind: str) -> list[Path]:
    """The folders of the modules of a kind, in order."""
    path = folder / MODULES
    if not path.exists():
        return []
    modules = parse_json(path, read_bytes(path))
    found = []
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, dict) and str(module.get("type", "")).endswith(kind):
            at = Path(str(module.get("path", "")))
            if at.is_absolute() or ".." in at.parts or "\0" in str(at):
                raise ModelFileError(path, None, "a path within the folder", repr(str(at))[:200])
            found.append(folder / at)
    return found
