"""Adapters in folders of PEFT, adapter_config.json and adapter_model.safetensors, and in the folders of models."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from backbay import ModelFileError
from backbay.gguf import ModelFile
from backbay.internals import numpy_view

from ..checkpoints.json_files import read_object
from ..checkpoints.safetensors import Checkpoint, StoredTensor, read_checkpoint, read_file
from ..checkpoints.transformers.config_json import CONFIG as MODEL_CONFIG
from ..checkpoints.transformers.module_names import ModuleLookup
from ..checkpoints.transformers.tensor_names import joined_experts
from .adapter import LARGEST_ALPHA, Adapter, AdapterFactors, Array, factor_numbers

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
UNSUPPORTED: Final = (
    *("use_dora", "modules_to_save", "lora_bias", "target_parameters", "trainable_token_indices"),
    *("layer_replication", "alora_invocation_tokens", "use_qalora", "use_bdlora", "megatron_config"),
)
"""Settings that make an adapter more than two factors for each matrix."""
CHANGE_THE_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initial values that go with a base model of their own."""
_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")


def read_peft(folder: Path, model: ModelFile) -> Adapter:
    """The adapter in a folder of PEFT, for a model whatever its format."""
    settings = _PeftSettings.of(folder / CONFIG, read_object(folder / CONFIG))
    factors = _factors(folder / TENSORS, settings, read_file(folder / TENSORS), _FACTOR, model)
    return Adapter(folder, factors)


def read_factors_of_model(name: str, model: ModelFile) -> Adapter | None:
    """The adapter whose factors lie among the tensors of the model's folder, `lora_A.NAME`; None if it has none."""
    folder, path = model.path, model.path / MODEL_CONFIG
    stated = read_object(path).get(f"{name}_lora") if folder.is_dir() else None
    if not isinstance(stated, dict):
        return None
    checkpoint = read_checkpoint(folder)
    pattern = re.compile(rf"(.+)\.lora_([AB])\.{re.escape(name)}\.weight")
    own = {each: stored for each, stored in checkpoint.tensors.items() if pattern.fullmatch(each)}
    if not own:
        return None
    settings = _PeftSettings.of(path, {"peft_type": "LORA", **stated})
    return Adapter(folder, _factors(folder, settings, replace(checkpoint, tensors=own), pattern, model))


def _factors(
    path: Path,
    settings: _PeftSettings,
    checkpoint: Checkpoint,
    pattern: re.Pattern[str],
    model: ModelFile,
) -> dict[str, AdapterFactors]:
    """The factors by the names of the model's matrices; `pattern` finds the module and the side in a tensor's name."""
    modules = {
        module: AdapterFactors.scaled(down, up, settings.scale(module, up.shape[-1]))
        for module, (down, up) in _pairs(checkpoint, pattern)
    }
    names, found = ModuleLookup(model), dict[str, AdapterFactors]()
    for module, own in _joined_experts(path, modules).items():
        for target, up in names.of(f"{module}.weight", own.up).items():
            if target in found or up.shape[-1] != own.rank or up.ndim != own.up.ndim:
                expected = f"a change of one matrix by {module!r}"
                raise ModelFileError(path, None, expected, f"one of {target!r} in another form")
            found[target] = AdapterFactors(own.down, up)
    return found


@dataclass(frozen=True)
class _PeftSettings:
    """The values of adapter_config.json that decide on the scale of factors."""

    path: Path
    rank: float
    alpha: float
    stabilized: bool
    ranks: dict[str, Any]
    alphas: dict[str, Any]

    @classmethod
    def of(cls, path: Path, values: dict[str, Any]) -> _PeftSettings:
        if values.get("peft_type") != "LORA":
            raise ModelFileError(path, None, "'LORA' as peft_type", repr(values.get("peft_type"))[:100])
        for name in UNSUPPORTED:
            if values.get(name):
                expected = f"an adapter of two factors for each matrix, without {name}"
                raise ModelFileError(path, None, expected, f"{name}: {values[name]!r}"[:200])
        if values.get("bias", "none") != "none":
            raise ModelFileError(path, None, "an adapter without biases", f"bias: {values['bias']!r}"[:200])
        start = values.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(CHANGE_THE_BASE):
            expected = (
                "an adapter of the base model as it is; save it with path_initial_model_for_weight_conversion"
            )
            raise ModelFileError(path, None, expected, f"init_lora_weights: {start!r}"[:200])
        rank, alpha = values.get("r"), values.get("lora_alpha")
        ranks, alphas = values.get("rank_pattern") or {}, values.get("alpha_pattern") or {}
        if not (_is_number(rank) and _is_number(alpha) and _is_table(ranks) and _is_table(alphas)):
            expected = (
                f"numbers for r, lora_alpha, rank_pattern and alpha_pattern, none beyond {LARGEST_ALPHA:g}"
            )
            raise ModelFileError(path, None, expected, repr([rank, alpha, ranks, alphas])[:200])
        return cls(path, float(rank), float(alpha), values.get("use_rslora") is True, ranks, alphas)

    def scale(self, module: str, rank: int) -> float:
        """The scale of a module's product, whose factors have this rank; ModelFileError if it is not the stated one."""
        stated = _by_pattern(self.ranks, module, self.rank)
        if stated != rank:
            raise ModelFileError(
                self.path, None, f"the rank {rank} of the factors of {module!r}", f"{stated:g}"
            )
        alpha = _by_pattern(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.stabilized else rank)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_ALPHA


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(each) for each in value.values())


def _by_pattern(table: dict[str, Any], module: str, default: float) -> float:
    """The value of the first pattern that a module's name ends with, as PEFT chooses it."""
    for pattern, value in table.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return float(value)
        except re.error:
            continue
    return default


def _pairs(checkpoint: Checkpoint, pattern: re.Pattern[str]) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Both factors of each module; ModelFileError names the first tensor that is none."""
    contents, tensors = {each.path: each for each in checkpoint.contents}, checkpoint.tensors
    modules = defaultdict[str, dict[str, str]](dict)
    for name, each in tensors.items():
        match = pattern.fullmatch(name)
        if match is None or len(each.info.shape) != 2:
            raise ModelFileError(each.info.path, each.info.offset, "factors of matrices alone", repr(name))
        modules[match[1]][match[2]] = name
    for module, names in modules.items():
        if len(names) < 2:
            info = tensors[next(iter(names.values()))].info
            raise ModelFileError(info.path, info.offset, f"both factors of {module!r}", "one")
        down, up = (
            _numbers(contents[each.info.path].mapped, each)
            for each in (tensors[names["A"]], tensors[names["B"]])
        )
        yield module, (down, up)
    for content in contents.values():
        content.check()


def _joined_experts(path: Path, modules: dict[str, AdapterFactors]) -> dict[str, AdapterFactors]:
    """With one pair of stacks in place of the pairs of a block's experts."""

    def join(found: list[AdapterFactors]) -> AdapterFactors:
        return AdapterFactors(np.stack([each.down for each in found]), np.stack([each.up for each in found]))

    def misfit(module: str, _: AdapterFactors) -> ModelFileError:
        expected = f"factors of one shape for all experts of {module!r}"
        return ModelFileError(path, None, expected, "others")

    return joined_experts(modules, lambda each: (each.down.shape, each.up.shape), join, misfit)


def _numbers(data: Array, stored: StoredTensor) -> Array:
    info = stored.info
    if not info.dtype.is_float:
        raise ModelFileError(info.path, info.offset, f"{info.name!r} of F32, F16 or BF16", stored.kind)
    raw = np.array(data[info.offset : info.offset + info.nbytes])
    return factor_numbers(numpy_view(raw, info.dtype).reshape(info.shape[::-1]), info.dtype)
