"""Arrangements of CPU weights: buffer types in which ggml rearranges weights for faster products."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from backbay import DType, Spec

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library, text
from ..library.pools import temporary_pool
from ..tensors.layouts import leaf_tensor_of

REPACK, AMX = "CPU_REPACK", "AMX"
TYPES = (
    DType.Q4_0, DType.Q4_K, DType.Q6_K, DType.Q5_K, DType.Q2_K, DType.Q8_0, DType.IQ4_NL, DType.MXFP4, DType.Q4_1,
    DType.IQ4_XS,
)  # fmt: skip
"""The dtypes that some CPU has an arrangement for."""
EXTRA_ROWS = 32  # of weights, for longer products: the fewest that AMX takes
SAMPLE_BYTES = 4096


def buffer_types(library: Library) -> dict[str, Ptr]:
    """The CPU's extra buffer types, by name."""
    address = library.registry_procedure("ggml_backend_dev_get_extra_bufts")
    if address == NULL:
        return {}
    listed = ffi.cast("ggml_backend_buffer_type_t *(*)(ggml_backend_dev_t)", address)(library.cpu)
    found: dict[str, Ptr] = {}
    while listed != NULL and listed[len(found)] != NULL:
        kind = listed[len(found)]
        found[text(library.lib.ggml_backend_buft_name(kind))] = kind
    return found


@final
class Arrangement:
    """A buffer type, for weights of some dtypes.

    Products with `spaced` dtypes are slow if all their columns begin at the same offset of a page; more rows help.
    Native code of ours multiplies `native` dtypes in this arrangement.
    """

    def __init__(
        self,
        library: Library,
        name: str,
        types: Collection[DType] = TYPES,
        spaced: Collection[DType] = (),
        native: Collection[DType] = (),
    ) -> None:
        self._library, self._lib, self.name, self._types = library, library.lib, name, types
        self.spaced, self.native = spaced, native
        self.buffer_type = buffer_types(library)[name]
        self._sample: Ptr = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, SAMPLE_BYTES)

    def tensor(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor in this arrangement, without data; None if products with it do not exist."""
        if dtype not in self._types or len(shape) != 2 or 0 in shape:
            return None
        made = leaf_tensor_of(Spec(dtype, shape))
        made.buffer = self._sample
        self._lib.ggml_backend_buffer_init_tensor(self._sample, made)
        return made if made.extra != NULL and self._multiplies(made) else None

    def stand_in(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor that graphs take for one in this arrangement, for dry runs."""
        made = self.tensor(dtype, shape)
        if made is not None:
            made.buffer, made.data = self._sample, self._lib.ggml_backend_buffer_get_base(self._sample)
        return made

    def size(self, tensor: Ptr) -> int:
        """The bytes that a tensor takes."""
        return int(self._lib.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor))

    def extra_size(self, tensor: Ptr) -> int:
        """The bytes that must follow a tensor, so that products may read EXTRA_ROWS more."""
        return self.size(tensor) * EXTRA_ROWS // int(tensor.ne[1])

    def place(self, memory: Ptr, tensor: Ptr, address: Ptr) -> None:
        """Give a tensor its place in a buffer of this type."""
        tensor.buffer = tensor.extra = NULL
        self._lib.ggml_backend_tensor_alloc(memory, tensor, address)

    def close(self) -> None:
        self._lib.ggml_backend_buffer_free(self._sample)

    def _multiplies(self, w: Ptr) -> bool:
        with temporary_pool(self._lib) as pool:
            x = self._lib.ggml_new_tensor_4d(pool, int(DType.F32), w.ne[0], 2, 1, 1)
            product = self._lib.ggml_mul_mat(pool, w, x)
            return bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, product))
