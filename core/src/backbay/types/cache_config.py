"""The layout that a backend wants of caches."""

from __future__ import annotations

from dataclasses import dataclass

from .dtype import DType


@dataclass(frozen=True)
class CacheConfig:
    """The properties that a cache should have on a backend.

    cache_padding       a cache's history and its capacity are multiples of this number
    permuted_v          values are stored and returned as (history, d, kv_heads)
    mask_dtype          the dtype of the mask
    mask_batch_padding  the mask's number of rows is a multiple of this number; padding rows are -infinity
    dtypes              the dtypes that a cache may be stored in, best one first
    """

    cache_padding: int = 1
    permuted_v: bool = False
    mask_dtype: DType = DType.F32
    mask_batch_padding: int = 1
    dtypes: tuple[DType, ...] = (DType.F32, DType.F16)
