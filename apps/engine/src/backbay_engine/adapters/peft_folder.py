"""Adapters in folders of PEFT: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from backbay import ModelFileError
from backbay.gguf import ModelFile
from backbay.internals import numpy_view

from ..checkpoints.json_files import read_object
from ..checkpoints.module_names import ModuleLookup
from ..checkpoints.safetensors import Checkpoint, StoredTensor, read_file
from ..checkpoints.tensor_names import joined_experts
from .adapter import Adapter, AdapterFactors, Array, factor_numbers

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
    settings, checkpoint = _PeftSettings.of(folder), read_file(folder / TENSORS)
    modules = {
        module: AdapterFactors.scaled(down, up, settings.scale(module, up.shape[-1]))
        for module, (down, up) in _pairs(checkpoint)
    }
    names, found = ModuleLookup(model), dict[str, AdapterFactors]()
    for module, own in _joined_experts(folder, modules).items():
        for target, up in names.of(f"{module}.weight", own.up).items():
            if target in found or up.shape[-1] != own.rank or up.ndim != own.up.ndim:
                expected = f"a change of one matrix by {module!r}"
                raise ModelFileError(folder / TENSORS, None, expected, f"one of {target!r} in another form")
            found[target] = AdapterFactors(own.down, up)
    return Adapter(folder, found)


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
    def of(cls, folder: Path) -> _PeftSettings:
        path = folder / CONFIG
        values = read_object(path)
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
            expected = "numbers for r, lora_alpha, rank_pattern and alpha_pattern"
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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


def _pairs(checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Both factors of each module; ModelFileError names the first tensor that is none."""
    (content,), tensors = checkpoint.contents, checkpoint.tensors
    modules = defaultdict[str, dict[str, str]](dict)
    for name, each in tensors.items():
        match = _FACTOR.fullmatch(name)
        if match is None or len(each.info.shape) != 2:
            raise ModelFileError(each.info.path, each.info.offset, "factors of matrices alone", repr(name))
        modules[match[1]][match[2]] = name
    for module, names in modules.items():
        if len(names) < 2:
            info = tensors[next(iter(names.values()))].info
            raise ModelFileError(info.path, info.offset, f"both factors of {module!r}", "one")
        down, up = (_numbers(content.mapped, tensors[names[part]]) for part in "AB")
        yield module, (down, up)
    content.check()


def _joined_experts(folder: Path, modules: dict[str, AdapterFactors]) -> dict[str, AdapterFactors]:
    """With one pair of stacks in place of the pairs of a block's experts."""

    def join(found: list[AdapterFactors]) -> AdapterFactors:
        return AdapterFactors(np.stack([each.down for each in found]), np.stack([each.up for each in found]))

    def misfit(module: str, _: AdapterFactors) -> ModelFileError:
        expected = f"factors of one shape for all experts of {module!r}"
        return ModelFileError(folder / TENSORS, None, expected, "others")

    return joined_experts(modules, lambda each: (each.down.shape, each.up.shape), join, misfit)


def _numbers(data: Array, stored: StoredTensor) -> Array:
    info = stored.info
    if not info.dtype.is_float:
        raise ModelFileError(info.path, info.offset, f"{info.name!r} of F32, F16 or BF16", stored.kind)
    raw = np.array(data[info.offset : info.offset + info.nbytes])
    return factor_numbers(numpy_view(raw, info.dtype).reshape(info.shape[::-1]), info.dtype)
