"""Copies of weights in memory that computes faster than a mapped file: rearranged, on huge pages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import final

from backbay.encoding import Bytes
from backbay.gguf import ModelFile, TensorInfo
from backbay.plan import Cancel, Progress, check_cancel
from backbay.spec import Spec

from . import extra
from .abi import NULL, Ptr, ffi
from .builder import four, leaf_tensor
from .library import Library

MAPPED, COPIED, AUTO = "mapped", "copied", "auto"
MADV_DONTNEED, MADV_HUGEPAGE = 4, 14
PAGE = os.sysconf("SC_PAGE_SIZE")
ALIGNMENT = 64
READERS = 4  # threads that rearrange; more of them wait for memory


@final
class WeightStore:
    """The weights of a model that are copied, and where.

    `repacks` tells which ones the CPU has a better arrangement for. Those can only be multiplied; whatever else is
    asked of them is read from the file. The others, if they are copied at all, are copied as they are.
    """

    def __init__(self, library: Library, model: ModelFile, policy: str) -> None:
        self._library, self._lib, self._model, self._policy = library, library.lib, model, policy
        self._plain: Ptr = library.lib.ggml_backend_cpu_buffer_type()
        self._trial: Ptr = NULL  # a small buffer of the repacking type
        self._repack: Ptr = NULL
        if policy == AUTO and extra.working(library, extra.REPACK):
            self._repack = extra.buffer_types(library)[extra.REPACK]
            self._trial = self._lib.ggml_backend_buft_alloc_buffer(self._repack, PAGE)
        self._buffers: list[Ptr] = []
        self._tensors: dict[str, Ptr] = {}

    def repacks(self, info: TensorInfo) -> bool:
        """Whether the CPU has an arrangement for a weight, and the weight is one that is multiplied."""
        if (
            self._trial == NULL
            or info.dtype not in extra.TYPES
            or len(info.shape) != 2
            or not self._multiplied(info)
        ):
            return False
        tensor = leaf_tensor(info.dtype, four(Spec(info.dtype, info.shape)))
        self._lib.ggml_backend_buffer_init_tensor(self._trial, tensor)
        return bool(tensor.extra != NULL)

    def copies(self, info: TensorInfo) -> bool:
        """Whether a weight gets memory of its own."""
        return bool(info.nbytes) and (self._policy == COPIED or self.repacks(info))

    def size(self, infos: Iterable[TensorInfo]) -> int:
        """The bytes that copies take."""
        return sum(_padded(info.nbytes) for info in infos)

    def allocate(self, infos: list[TensorInfo]) -> None:
        """Memory for copies, one piece for those that are rearranged and one for the others."""
        for repacked in (True, False):
            chosen = [info for info in infos if self.repacks(info) is repacked]
            if chosen:
                self._allocate(chosen, self._repack if repacked else self._plain)

    def tensor(self, info: TensorInfo) -> Ptr | None:
        """The copy of a weight, if there is one."""
        return self._tensors.get(info.name)

    def fill(self, progress: Progress, cancel: Cancel | None) -> None:
        """Copy the weights, telling how far it is."""
        total = sum(self._model.tensors[name].nbytes for name in self._tensors) or 1
        done = 0
        with ThreadPoolExecutor(READERS) as readers:
            try:
                for future in as_completed(
                    [readers.submit(self._fill, name, cancel) for name in self._tensors]
                ):
                    done += future.result()
                    progress(done / total)
            except BaseException:
                readers.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        for buffer in (*self._buffers, *([self._trial] if self._trial != NULL else [])):
            self._lib.ggml_backend_buffer_free(buffer)
        self._buffers.clear()
        self._tensors.clear()
        self._trial = NULL

    def _multiplied(self, info: TensorInfo) -> bool:
        """Embeddings are looked up, unless they serve as the output's weights too."""
        return info.name != "token_embd.weight" or "output.weight" not in self._model.tensors

    def _allocate(self, infos: list[TensorInfo], kind: Ptr) -> None:
        memory = self._lib.ggml_backend_buft_alloc_buffer(kind, self.size(infos) + ALIGNMENT)
        if memory == NULL:
            raise MemoryError("ggml got no memory from the system")
        self._buffers.append(memory)
        base = int(ffi.cast("uintptr_t", self._lib.ggml_backend_buffer_get_base(memory)))
        _advise(base, self.size(infos), MADV_HUGEPAGE)
        for info in infos:
            tensor = leaf_tensor(info.dtype, four(Spec(info.dtype, info.shape)))
            self._lib.ggml_backend_tensor_alloc(memory, tensor, ffi.cast("void *", base))
            self._tensors[info.name] = tensor
            base += _padded(info.nbytes)

    def _fill(self, name: str, cancel: Cancel | None) -> int:
        check_cancel(cancel)
        data = self._model.data(name)
        self._lib.ggml_backend_tensor_set(self._tensors[name], ffi.from_buffer(data), 0, data.size)
        _forget(data)
        return int(data.size)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _forget(data: Bytes) -> None:
    """What was copied need not stay in memory twice; a later read brings it back."""
    _advise(data.ctypes.data, data.size, MADV_DONTNEED)


def _advise(address: int, nbytes: int, advice: int) -> None:
    """Whole pages within a range; a system that does not know the advice loses nothing."""
    start, end = -(-address // PAGE) * PAGE, (address + nbytes) // PAGE * PAGE
    if end > start and sys.platform == "linux":
        ffi.dlopen(None).madvise(ffi.cast("void *", start), end - start, advice)
