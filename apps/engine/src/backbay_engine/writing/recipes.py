"""Recipes: the dtype of each tensor in a file, as llama.cpp chooses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from backbay import DType
from backbay.gguf import ModelFile, TensorInfo

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
_BLOCK = re.compile(r"blk\.([0-9]+)\.")
_NEVER = re.compile(
    r"_norm\.weight$|ffn_gate_inp|altup|laurel|per_layer_model_proj|^position_embd|^token_types|ssm_conv1d|shortconv\.conv"
    r"|time_mix_(first|lerp|[wvagr][012]|decay)|attn_rel_b|\.position_embd|rope_(freqs|factors)"
)
"""Tensors that are small, and matter: they stay floats."""
_MATTERING = re.compile(r"attn_v\.weight$|attn_v_b\.|ffn_down(_exps|_shexp)?\.weight$")
_FALLBACK = {DType.Q4_K: DType.Q5_0, DType.Q5_K: DType.Q5_1, DType.Q6_K: DType.Q8_0}
"""For rows that fill no blocks of 256."""


@dataclass(frozen=True)
class QuantizationRecipe:
    """The dtype of most tensors, and how many bits tensors that matter get."""

    most: DType
    file_type: int  # llama.cpp's number for such a file
    more: DType | None = None  # of half of the values and of the feed-forwards' last matrices
    early: bool = False  # whether these are the first blocks' alone
    joint: DType | None = None  # of queries, keys and values in one matrix
    half: str = r"^$"  # a pattern of tensors that are f16 whatever the others are

    def dtype_of(self, info: TensorInfo, model: ModelFile) -> DType:
        """The dtype that a tensor gets; that of a quantized tensor which must stay as it is does not change."""
        wide = [extent for extent in info.shape if extent != 1]
        if not (info.dtype.is_float or info.dtype.is_quantized):
            return info.dtype
        if re.search(self.half, info.name):
            return F16
        small = len(wide) < 2 or not info.name.endswith((".weight", ".weight.1"))
        if small or _NEVER.search(info.name):
            return F32 if info.dtype.is_float else info.dtype
        dtype, row = self._wanted(info, model), info.shape[0]
        if row % dtype.block_size:  # it does not fill whole blocks
            dtype = _FALLBACK.get(dtype, F16)
        return dtype if row % dtype.block_size == 0 else F16

    def _wanted(self, info: TensorInfo, model: ModelFile) -> DType:
        name, experts = info.name, model.metadata.int("expert_count", 0)
        head = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
        if not self.most.is_quantized or self.most is DType.Q8_0:
            return self.most
        if name == head:
            return DType.Q6_K
        match, count = _BLOCK.search(name), model.metadata.int("block_count", 1)
        block = 0 if match is None else int(match[1])
        if re.search(r"attn_[vk]\.weight$", name) and experts == 8:
            return DType.Q8_0
        if "attn_qkv.weight" in name and self.joint is not None:
            return self.joint
        if "attn_output.weight" in name and experts == 8 and self.more is not None:
            return max(self.most, DType.Q5_K)
        if self.more is not None and _MATTERING.search(name):
            limit = 4 if "attn_v" in name else count // 8
            chosen = block < limit if self.early else _needs_more(block, count)
            return self.more if chosen else self.most
        return self.most


def _needs_more(block: int, count: int) -> bool:
    """Whether a block is among the first or last eighth, or each third between them."""
    return block < count // 8 or block >= 7 * count // 8 or (block - count // 8) % 3 == 2


RECIPES: Mapping[str, QuantizationRecipe] = {
    "f32": QuantizationRecipe(F32, 0),
    "f16": QuantizationRecipe(F16, 1),
    "bf16": QuantizationRecipe(BF16, 32),
    "q8_0": QuantizationRecipe(DType.Q8_0, 7),
    "q6_k": QuantizationRecipe(DType.Q6_K, 18),
    "q5_k_m": QuantizationRecipe(DType.Q5_K, 17, more=DType.Q6_K, joint=DType.Q6_K),
    "q5_k_s": QuantizationRecipe(DType.Q5_K, 16),
    "q5_1": QuantizationRecipe(DType.Q5_1, 9),
    "q5_0": QuantizationRecipe(DType.Q5_0, 8),
    "q4_k_m": QuantizationRecipe(DType.Q4_K, 15, more=DType.Q6_K, joint=DType.Q5_K),
    "q4_k_s": QuantizationRecipe(DType.Q4_K, 14, more=DType.Q5_K, early=True),
    "q4_1": QuantizationRecipe(DType.Q4_1, 3),
    "q4_0": QuantizationRecipe(DType.Q4_0, 2),
}
"""By their names at llama.cpp's tools, with the numbers of its file types."""
_CONVOLUTIONS = r"^a\.conv1d\.[12]\.weight$"  # llama.cpp reads no others


def projector_recipe(dtype: str) -> QuantizationRecipe:
    """The recipe of a projector file beside a text of this dtype: encoders are not quantized."""
    of = RECIPES["f32" if dtype == "f32" else "f16"]
    return replace(of, half=_CONVOLUTIONS)


def is_lossless(source: DType, target: DType) -> bool:
    return source is target or (source.is_float and target is F32)


def bytes_by_dtype(weights: Iterable[tuple[TensorInfo, DType]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for info, dtype in weights:
        found[str(dtype)] += nbytes_of(info, dtype)
    return dict(found)


def nbytes_of(info: TensorInfo, dtype: DType) -> int:
    return dtype.row_size(info.shape[0] if info.shape else 1) * prod(info.shape[1:])
