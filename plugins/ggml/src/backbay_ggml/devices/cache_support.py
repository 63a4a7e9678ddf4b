"""Which caches a device supports, asked with ops that are never run."""

from __future__ import annotations

from collections.abc import Callable

from backbay import DType

from ..library.abi import Ptr
from ..library.library import Library
from ..library.pools import temporary_pool
from .device import Device

HISTORY, KV_HEADS, TOKENS = 256, 2, 2


def attends(library: Library, device: Device, head: int, dtype: DType = DType.F16) -> bool:
    """Whether a device has flash attention for heads of this size, over a cache of this dtype."""

    def attention(new: Callable[..., Ptr], pool: Ptr) -> Ptr:
        q = new(DType.F32, head, TOKENS, 2 * KV_HEADS, 1)
        k, v = (new(dtype, head, HISTORY, KV_HEADS, 1) for _ in range(2))
        mask = new(DType.F16, HISTORY, TOKENS, 1, 1)
        return library.lib.ggml_flash_attn_ext(pool, q, k, v, mask, 1.0, 0.0, 0.0)

    return _runs(library, device, attention)


def stores(library: Library, device: Device, dtype: DType, flash: bool) -> bool:
    """Whether a device writes rows of f32 into a cache of a dtype, and has flash attention over it if `flash` is set."""

    def write(new: Callable[..., Ptr], pool: Ptr) -> Ptr:
        rows, ids = new(DType.F32, 128, TOKENS, 1, 1), new(DType.I32, TOKENS, 1, 1, 1)
        return library.lib.ggml_set_rows(pool, new(dtype, 128, HISTORY, 1, 1), rows, ids)

    return _runs(library, device, write) and (not flash or attends(library, device, 128, dtype))


def _runs(library: Library, device: Device, make: Callable[[Callable[..., Ptr], Ptr], Ptr]) -> bool:
    lib = library.lib
    with temporary_pool(lib) as pool:
        return device.supports(make(lambda dtype, *ne: lib.ggml_new_tensor_4d(pool, int(dtype), *ne), pool))
