"""A folder of Hugging Face's transformers, as a model file: with the keys and the tensors of GGUF."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backbay import ModelFileError
from backbay.gguf import Config, Derived, ModelFile, TensorInfo

from .arrays import LazyArray, stack, stored_array
from .families import family_of
from .family import Arrays, Family
from .safetensors import Stored, read_checkpoint
from .sentence_transformers import dense_arrays, pooling_keys
from .settings import Keys, Settings, read_settings, usual_keys
from .vocabularies import vocabulary_keys

log = logging.getLogger(__name__)

LARGEST_RANK = 4  # of a tensor in a model file
_EXPERT = re.compile(r"(.*\.experts)\.([0-9]+)\.(.*)")
_BLOCK = re.compile(r"(?:^|\.)([0-9]+)(?=\.)")
_ENCODERS = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|multi_modal_projector|embed_vision|embed_audio)\.")
_UNUSED = re.compile(r"(rotary_emb\.\w+|\.attn\.(masked_)?bias|position_ids|inv_freq|num_batches_tracked)$")
_PREFIXES = ("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", "")
_ALWAYS_FLOATS = re.compile(
    r"_norm\.weight$|ffn_gate_inp(_shexp)?\.|^position_embd|^token_types|ssm_conv1d|shortconv\.conv|time_mix_"
    r"(first|w1|w2|decay_w1|decay_w2|lerp_fused)|altup_(correct|predict)_coef"
)
"""Tensors that stay f32 whatever the others are, as llama.cpp wants them."""
# as a family makes them where the table has no name
_FINAL = re.compile(r"(blk\.[0-9]+\.[a-z0-9_]+|cls\.output)\.(weight|bias|scale)")
SUFFIXES = ".weight", ".bias", ".scale"
USUAL_NAMES = "llama"  # the table for architectures that the gguf package does not know


def open_folder(folder: Path, only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a folder with config.json and safetensors. Its weights stay mapped; those that a model file has in another
    form are made when they are read.
    """
    settings = read_settings(folder)
    family = family_of(settings)
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
    return {**general, **own, **vocabulary_keys(settings, family.architecture, count)}


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


def _arrays(stored: Mapping[str, Stored], family: Family, settings: Settings) -> Arrays:
    """All tensors of the model file, by its names."""
    own = {_own_name(name, family): each for name, each in stored.items() if not _is_foreign(name, settings)}
    arrays = family.prepare(_stacked(_readable(own), settings), settings)
    place = _Places(family, settings)
    found: Arrays = {}
    for name, array in arrays.items():
        for own_name, each in _changed(family, name, array, settings).items():
            target = place.of(own_name)
            if target in found:
                raise _misfit(settings, own_name, each, f"no second tensor for {target!r}")
            small = len(each.shape) <= 1 or not target.endswith(".weight") or _ALWAYS_FLOATS.search(target)
            found[target] = each.floats() if small and not each.dtype.is_quantized else each
    beside = next(iter(found.values()), None)
    if beside is None:
        raise ModelFileError(settings.folder, None, "tensors of a model", "none")
    return found | family.further(settings, beside)


def _own_name(name: str, family: Family) -> str:
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


def _readable(stored: Mapping[str, Stored]) -> Arrays:
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
    whole, experts = dict[str, LazyArray](), defaultdict[str, dict[int, LazyArray]](dict)
    for name, array in arrays.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            whole[name] = array
        else:
            experts[f"{match[1]}.{match[3]}"][int(match[2])] = array
    for name, found in experts.items():
        ordered = [found[index] for index in sorted(found)]
        alike = {(each.shape, each.dtype) for each in ordered}
        if sorted(found) != list(range(len(found))) or len(alike) > 1:
            raise _misfit(settings, name, ordered[0], "a matrix of one shape and dtype for each expert")
        whole[name] = stack(ordered)
    return whole


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


class _Places:
    """The places of tensors in a model file, by the table of the gguf package."""

    def __init__(self, family: Family, settings: Settings) -> None:
        import gguf

        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        self._family, self._settings = family, settings
        # The table is as long for one block as it is wide; the number of the block is put in here.
        number = numbers.get(family.architecture, numbers[USUAL_NAMES])  # for architectures of other packages
        self._table = gguf.get_tensor_name_map(number, 1)

    def of(self, name: str) -> str:
        renamed = self._family.renamed(name)
        match = _BLOCK.search(renamed)
        first = renamed if match is None else f"{renamed[: match.start(1)]}0{renamed[match.end(1) :]}"
        for tried in (first, f"model.{first}", first.removeprefix("model.")):
            found = self._table.get_name(tried, SUFFIXES)
            if found is not None:
                return found if match is None else found.replace("blk.0.", f"blk.{match[1]}.", 1)
        if _FINAL.fullmatch(renamed):
            return renamed
        expected = (
            f"tensors that {self._settings.architecture} has; convert models of other kinds with llama.cpp's "
            "convert_hf_to_gguf.py"
        )
        raise ModelFileError(self._settings.folder, None, expected, repr(name))
