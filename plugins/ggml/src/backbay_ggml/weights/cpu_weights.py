"""Copies of weights in memory that computes faster than a mapped file: rearranged, on huge pages."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import final

from backbay import Spec
from backbay.gguf import ModelFile, TensorInfo
from backbay.plugin import Bytes, Cancel, Progress, check_cancel

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from ..ops.builder import four, leaf_tensor
from . import arrangements as extra
from .arrangements import Arrangement

MAPPED, COPIED, AUTO = "mapped", "copied", "auto"
MADV_DONTNEED, MADV_HUGEPAGE = 4, 14
PAGE = os.sysconf("SC_PAGE_SIZE")
ALIGNMENT = 64
READERS = 4  # threads that rearrange; more of them wait for memory


@final
class WeightStore:
    """The weights of a model that are copied, and where.

    Some are arranged in another way, for which the CPU has faster code. Those can only be multiplied; whatever else
    is asked of them is read from the file. The others, if they are copied at all, are copied as they are.
    """

    def __init__(self, library: Library, model: ModelFile, policy: str, served: Collection[str] = ()) -> None:
        self._served = served  # weights whose products another device makes
        self._library, self._lib, self._model, self._policy = library, library.lib, model, policy
        self._arrangements = extra.useful(library) if policy == AUTO else []
        self._arranged: dict[str, Arrangement | None] = {}  # by name
        self._buffers: list[Ptr] = []
        self._tensors: dict[str, Ptr] = {}

    def arranged(self, info: TensorInfo) -> Arrangement | None:
        """The arrangement of a weight, if it is one that is multiplied, and there is one for it."""
        if info.name not in self._arranged:
            tried = self._arrangements if self._multiplied(info) else []
            fitting = (each for each in tried if each.tensor(info.dtype, info.shape) is not None)
            self._arranged[info.name] = next(fitting, None)
        return self._arranged[info.name]

    def copies(self, info: TensorInfo) -> bool:
        """Whether a weight gets memory of its own."""
        return bool(info.nbytes) and (self._policy == COPIED or self.arranged(info) is not None)

    def size(self, infos: Iterable[TensorInfo]) -> int:
        """The bytes that copies take."""
        return sum(_padded(self._made(info)[1]) for info in infos)

    def allocate(self, infos: list[TensorInfo]) -> None:
        """Memory for copies, in one piece for each arrangement."""
        for arrangement in (*self._arrangements, None):
            chosen = [info for info in infos if self.arranged(info) is arrangement]
            if chosen:
                self._allocate(chosen, arrangement)

    def tensor(self, info: TensorInfo) -> Ptr | None:
        """The copy of a weight, if there is one."""
        return self._tensors.get(info.name)

    def measured(self, info: TensorInfo) -> Ptr | None:
        """What the copy of a weight would be for a graph, if it is one that is arranged in another way."""
        arrangement = self.arranged(info)
        return None if arrangement is None else arrangement.measured(info.dtype, info.shape)

    @property
    def nbytes(self) -> int:
        """What is to be read from the file."""
        return sum(self._model.tensors[name].nbytes for name in self._tensors)

    def fill(self, progress: Progress, cancel: Cancel | None) -> None:
        """Copy the weights, telling how far it is."""
        total, done = self.nbytes or 1, 0
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
        for buffer in self._buffers:
            self._lib.ggml_backend_buffer_free(buffer)
        for arrangement in self._arrangements:
            arrangement.close()
        self._buffers.clear()
        self._tensors.clear()
        self._arrangements.clear()
        self._arranged.clear()

    def _multiplied(self, info: TensorInfo) -> bool:
        """Embeddings are looked up, unless they serve as the output's weights too, and here."""
        return info.name not in self._served and (
            info.name != "token_embd.weight" or "output.weight" not in self._model.tensors
        )

    def _made(self, info: TensorInfo) -> tuple[Ptr, int]:
        """The tensor of a copy, and its size."""
        arrangement = self.arranged(info)
        tensor = None if arrangement is None else arrangement.tensor(info.dtype, info.shape)
        if arrangement is None or tensor is None:
            return leaf_tensor(info.dtype, four(Spec(info.dtype, info.shape))), info.nbytes
        return tensor, arrangement.size(tensor)

    def _allocate(self, infos: list[TensorInfo], arrangement: Arrangement | None) -> None:
        kind = self._lib.ggml_backend_cpu_buffer_type() if arrangement is None else arrangement.kind
        nbytes = self.size(infos)
        behind = 0 if arrangement is None else max(arrangement.space(self._made(info)[0]) for info in infos)
        memory = self._lib.ggml_backend_buft_alloc_buffer(kind, nbytes + ALIGNMENT + behind)
        if memory == NULL:
            raise MemoryError("ggml got no memory from the system")
        self._buffers.append(memory)
        base = int(ffi.cast("uintptr_t", self._lib.ggml_backend_buffer_get_base(memory)))
        _advise(base, nbytes, MADV_HUGEPAGE)
        for info in infos:
            tensor, size = self._made(info)
            place = ffi.cast("void *", base)
            if arrangement is None:
                self._lib.ggml_backend_tensor_alloc(memory, tensor, place)
            else:
                arrangement.settle(memory, tensor, place)
            self._tensors[info.name] = tensor
            base += _padded(size)

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
