"""The tensors of a folder of transformers, by the names of a model file, and in the form that they have there."""

from __future__ import annotations

import re
from collections.abc import Mapping

from backbay import ModelFileError

from ..arrays import LazyArray, stack, stored_array
from ..safetensors import StoredTensor
from .config_json import Settings
from .family_mapping import Arrays, Family
from .predicting_blocks import with_predicting_blocks
from .tensor_names import TensorNames, joined_experts

LARGEST_RANK = 4  # of a tensor in a model file
_ENCODERS = re.compile(
    r"(^|\.)(visual|vision\w*|audio\w*|multi_modal_projector|embed_vision|embed_audio|connector)\.|image_newline$"
)
_UNUSED = re.compile(r"(rotary_emb\.\w+|\.attn\.(masked_)?bias|position_ids|inv_freq|num_batches_tracked)$")
_PREFIXES = (
    *(("model.language_model.", "model."), ("model.text_model.", "model.")),
    *(("language_model.model.", "model."), ("language_model.", "")),
)
_ALWAYS_FLOATS = re.compile(
    r"_norm\.weight$|ffn_gate_inp(_shexp)?\.|^position_embd|^token_types|ssm_conv1d|shortconv\.conv|time_mix_"
    r"(first|w1|w2|decay_w1|decay_w2|lerp_fused)|altup_(correct|predict)_coef"
)
"""Tensors that stay f32 whatever the others are, as llama.cpp wants them."""


def folder_arrays(stored: Mapping[str, StoredTensor], family: Family, settings: Settings) -> Arrays:
    """All tensors of the model file, by its names."""
    own = {
        family_name(name, family): each
        for name, each in stored.items()
        if not _is_foreign(name, family, settings)
    }
    if not family.tensors:
        own = with_predicting_blocks(own, settings, kept=family.predicts)
    arrays = family.prepare(_stacked(_readable(own), settings), settings)
    names = TensorNames(family, settings)
    found: Arrays = {}
    for name, array in arrays.items():
        for own_name, each in _changed(family, name, array, settings).items():
            target = names.of(own_name)
            if target in found:
                raise _misfit(settings, own_name, each, f"no second tensor for {target!r}")
            small = (
                len(each.shape) <= 1
                or not target.endswith((".weight", ".weight.1"))
                or _ALWAYS_FLOATS.search(target)
            )
            found[target] = each.floats() if small and not each.dtype.is_quantized else each
            if len(each.shape) > LARGEST_RANK:
                raise _misfit(settings, target, each, f"at most {LARGEST_RANK} dimensions")
    beside = next(iter(found.values()), None)
    if beside is None:
        raise ModelFileError(settings.folder, None, "tensors of a model", "none")
    return found | family.further(settings, beside)


def family_name(name: str, family: Family) -> str:
    for prefix, own in _PREFIXES:
        if name.startswith(prefix):
            name = own + name.removeprefix(prefix)
    return family.prefix + name if family.prefix and not name.startswith(family.prefix) else name


def describes_encoder(settings: Settings) -> bool:
    """Whether a configuration has a section of an encoder."""
    return "vision_config" in settings or "audio_config" in settings


def _is_foreign(name: str, family: Family, settings: Settings) -> bool:
    """Whether a tensor belongs to an encoder beside the text, or to nothing."""
    if family.tensors:
        return _UNUSED.search(name) is not None or re.search(family.tensors, name) is None
    aside = describes_encoder(settings) and _ENCODERS.search(name) is not None
    return aside or _UNUSED.search(name) is not None


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
