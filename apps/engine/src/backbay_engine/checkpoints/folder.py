"""A folder of Hugging Face's transformers, as a model file: with the keys and the tensors of GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backbay import ModelFileError
from backbay.gguf import Config, Content, Derived, ModelFile, TensorInfo

from .arrays import LazyArray, stack, stored_array
from .config_json import Keys, Settings, read_settings, usual_keys
from .families import family_of
from .family_mapping import Arrays, Family
from .json_files import parse_json, read_bytes, read_object
from .safetensors import StoredTensor, read_checkpoint
from .tensor_names import TensorNames, joined_experts
from .vocabularies import vocabulary_keys

LARGEST_RANK = 4  # of a tensor in a model file
_ENCODERS = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|multi_modal_projector|embed_vision|embed_audio)\.")
_UNUSED = re.compile(r"(rotary_emb\.\w+|\.attn\.(masked_)?bias|position_ids|inv_freq|num_batches_tracked)$")
_PREFIXES = ("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", "")
_ALWAYS_FLOATS = re.compile(
    r"_norm\.weight$|ffn_gate_inp(_shexp)?\.|^position_embd|^token_types|ssm_conv1d|shortconv\.conv|time_mix_"
    r"(first|w1|w2|decay_w1|decay_w2|lerp_fused)|altup_(correct|predict)_coef"
)
"""Tensors that stay f32 whatever the others are, as llama.cpp wants them."""


def open_folder(folder: Path, only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a folder with config.json and safetensors. Its weights stay mapped; those that a model file has in another
    form are made when they are read.
    """
    settings = read_settings(folder)
    family = family_of(settings)
    settings = family.usual(settings)
    _refuse_quantized(settings)
    checkpoint = read_checkpoint(folder)
    dense, dense_keys, contents = dense_arrays(folder)
    arrays = _arrays(checkpoint.tensors, family, settings) | dense
    tensors: dict[str, TensorInfo] = {}
    derived: dict[str, Derived] = {}
    for name, array in arrays.items():
        if only is not None and not only(name):
            continue
        if len(array.shape) > LARGEST_RANK:
            raise _misfit(settings, name, array, f"at most {LARGEST_RANK} dimensions")
        tensors[name], how = array.as_tensor(name)
        if how is not None:
            derived[name] = how
    metadata = _metadata(settings, family, arrays, dense_keys)
    files = [*checkpoint.contents, *contents]
    return ModelFile(folder, files, Config(metadata, path=folder), tensors, derived)


def _metadata(settings: Settings, family: Family, arrays: Arrays, dense: Keys) -> dict[str, Any]:
    keys = {**usual_keys(settings), **pooling_keys(settings.folder), **dense, **family.keys(settings)}
    # a key with a slash in front has no architecture
    named = {key[1:] if key[0] == "/" else f"{family.architecture}.{key}": keys[key] for key in keys}
    own = {key: _stored(value) for key, value in named.items() if value is not None}
    architecture = family.architecture
    general = {"general.architecture": architecture, "general.type": "model", "general.name": settings.name}
    embedding = arrays.get("token_embd.weight")
    count = embedding.shape[0] if embedding is not None and embedding.shape else 0
    own.setdefault(f"{family.architecture}.vocab_size", count)
    found = {**general, **own, **vocabulary_keys(settings, family.architecture, count)}
    for key, value in found.items():
        _require_text(settings, key, value)
    return found


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


def _arrays(stored: Mapping[str, StoredTensor], family: Family, settings: Settings) -> Arrays:
    """All tensors of the model file, by its names."""
    own = {
        family_name(name, family): each for name, each in stored.items() if not _is_foreign(name, settings)
    }
    arrays = family.prepare(_stacked(_readable(own), settings), settings)
    names = TensorNames(family, settings)
    found: Arrays = {}
    for name, array in arrays.items():
        for own_name, each in _changed(family, name, array, settings).items():
            target = names.of(own_name)
            if target in found:
                raise _misfit(settings, own_name, each, f"no second tensor for {target!r}")
            small = len(each.shape) <= 1 or not target.endswith(".weight") or _ALWAYS_FLOATS.search(target)
            found[target] = each.floats() if small and not each.dtype.is_quantized else each
    beside = next(iter(found.values()), None)
    if beside is None:
        raise ModelFileError(settings.folder, None, "tensors of a model", "none")
    return found | family.further(settings, beside)


def family_name(name: str, family: Family) -> str:
    for prefix, own in _PREFIXES:
        if name.startswith(prefix):
            name = own + name.removeprefix(prefix)
    return family.prefix + name if family.prefix and not name.startswith(family.prefix) else name


def _is_foreign(name: str, settings: Settings) -> bool:
    """Whether a tensor belongs to an encoder beside the text, to a block that predicts further tokens, or to nothing."""
    block = re.search(r"(?:^|\.)layers\.([0-9]{1,6})\.", name)
    beyond = block is not None and int(block[1]) >= settings.blocks
    aside = "vision_config" in settings or "audio_config" in settings
    return beyond or _UNUSED.search(name) is not None or (aside and _ENCODERS.search(name) is not None)


def _readable(stored: Mapping[str, StoredTensor]) -> Arrays:
    """The tensors as arrays of floats, or of bytes where a family understands them."""
    found = {}
    for name, each in stored.items():
        if not each.info.dtype.is_float and each.kind != "U8":
            expected = f"tensor {name!r} of F32, F16 or BF16"
            raise ModelFileError(each.info.path, each.info.offset, expected, each.kind)
        found[name] = stored_array(each.info)
    return found


def _stacked(arrays: Arrays, settings: Settings) -> Arrays:
    """With one array in place of the matrices of a block's experts."""

    def misfit(name: str, array: LazyArray) -> ModelFileError:
        return _misfit(settings, name, array, "a matrix of one shape and dtype for each expert")

    return joined_experts(arrays, lambda array: (array.shape, array.dtype), stack, misfit)


def _changed(family: Family, name: str, array: LazyArray, settings: Settings) -> Arrays:
    try:
        return family.changed(name, array, settings)
    except (ValueError, IndexError, ZeroDivisionError, AssertionError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise _misfit(settings, name, array, "a shape that the configuration explains") from error


def _misfit(settings: Settings, name: str, array: LazyArray, expected: str) -> ModelFileError:
    first, expected = array.parts[0], f"{expected} as {name!r} of {settings.architecture}"
    return ModelFileError(first.path, first.offset, expected, f"{array.dtype}{list(array.shape)}")


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
