"""Copies of weights on the CPU, in memory that is faster than a mapped file: rearranged, on huge pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from mmap import PAGESIZE
from typing import final

from backbay.gguf import ModelFile, TensorInfo
from backbay.plugin import Cancel, check_cancel

from ..devices.device import rounded_up
from ..library.abi import NULL, Ptr, address, ffi
from ..library.library import Library
from .arrangements import Arrangement, usable_arrangements

MAPPED, COPIED, AUTO = "mapped", "copied", "auto"  # policies
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
MADV_HUGEPAGE = 14
ALIGNMENT = 64
READERS = 4  # threads that rearrange; more of them would wait for memory


@final
class CpuWeights:
    """The weights of a model that the CPU multiplies, and rearranged copies of some.

    A rearranged copy serves products only; rows and bytes of the weight are those of the model file. With the policy
    COPIED, core keeps the file's bytes in memory; with MAPPED, nothing is rearranged.
    """

    def __init__(
        self, library: Library, model: ModelFile, policy: str, multiplied_elsewhere: Collection[str] = ()
    ) -> None:
        self._lib, self._model, self._policy = library.lib, model, policy
        self._multiplied_elsewhere = multiplied_elsewhere  # weights whose products another device makes
        self._arrangements = usable_arrangements(library) if policy != MAPPED else []
        self._chosen: dict[str, Arrangement | None] = {}  # by name
        self._buffers: list[Ptr] = []
        self.copies: dict[str, Ptr] = {}

    def arrangement(self, info: TensorInfo) -> Arrangement | None:
        """The arrangement of a weight, if it is multiplied, and one takes it."""
        if info.name not in self._chosen:
            # Embeddings are only looked up, unless they serve as the output's weights too.
            is_looked_up = info.name == EMBEDDINGS and not is_tied(self._model)
            tried = [] if is_looked_up or info.name in self._multiplied_elsewhere else self._arrangements
            fitting = (each for each in tried if each.tensor(info.dtype, info.shape) is not None)
            self._chosen[info.name] = next(fitting, None)
        return self._chosen[info.name]

    def is_copied(self, info: TensorInfo) -> bool:
        return bool(info.nbytes) and self.arrangement(info) is not None

    def size(self, infos: Iterable[TensorInfo]) -> int:
        return sum(rounded_up(self._new_copy(info)[1], ALIGNMENT) for info in infos)

    def allocate(self, infos: list[TensorInfo]) -> None:
        """Allocate copies, in one buffer for each arrangement."""
        for arrangement in self._arrangements:
            chosen = [info for info in infos if self.arrangement(info) is arrangement]
            if chosen:
                self._allocate(chosen, arrangement)

    def stand_in(self, info: TensorInfo) -> Ptr | None:
        """A tensor in place of a weight's rearranged copy, for dry runs."""
        arrangement = self.arrangement(info)
        return None if arrangement is None else arrangement.stand_in(info.dtype, info.shape)

    def load(self, progress: Callable[[int], None], cancel: Cancel | None) -> None:
        with ThreadPoolExecutor(READERS) as readers:
            try:
                for future in as_completed(
                    [readers.submit(self._load, each, cancel) for each in self.copies]
                ):
                    progress(future.result())
            except BaseException:
                readers.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        for buffer in self._buffers:
            self._lib.ggml_backend_buffer_free(buffer)
        for arrangement in self._arrangements:
            arrangement.close()
        self._buffers.clear()
        self.copies.clear()
        self._arrangements.clear()
        self._chosen.clear()

    def _new_copy(self, info: TensorInfo) -> tuple[Ptr, int]:
        """A tensor for a weight's copy, and its size."""
        arrangement = self.arrangement(info)
        assert arrangement is not None
        tensor = arrangement.tensor(info.dtype, info.shape)
        assert tensor is not None
        return tensor, arrangement.size(tensor)

    def _allocate(self, infos: list[TensorInfo], arrangement: Arrangement) -> None:
        nbytes = self.size(infos) + ALIGNMENT
        nbytes += max(arrangement.extra_size(self._new_copy(info)[0]) for info in infos)
        memory = self._lib.ggml_backend_buft_alloc_buffer(arrangement.buffer_type, nbytes)
        if memory == NULL:
            raise MemoryError("the system gave ggml no memory")
        self._buffers.append(memory)
        base = address(self._lib.ggml_backend_buffer_get_base(memory))
        _advise(base, nbytes, MADV_HUGEPAGE)
        for info in infos:
            tensor, size = self._new_copy(info)
            arrangement.place(memory, tensor, ffi.cast("void *", base))
            self.copies[info.name] = tensor
            base += rounded_up(size, ALIGNMENT)

    def _load(self, name: str, cancel: Cancel | None) -> int:
        check_cancel(cancel)
        data = self._model.data(name)
        self._lib.ggml_backend_tensor_set(self.copies[name], ffi.from_buffer(data), 0, data.size)
        self._model.drop_pages(name)
        return int(data.size)


def is_tied(model: ModelFile) -> bool:
    """Whether the embeddings serve as the output's weights too."""
    return EMBEDDINGS in model.tensors and OUTPUT not in model.tensors


def _advise(start: int, nbytes: int, advice: int) -> None:
    """Advise the system on the whole pages of a range; it may ignore it."""
    first, end = rounded_up(start, PAGESIZE), (start + nbytes) // PAGESIZE * PAGESIZE
    if end > first and sys.platform == "linux":
        ffi.dlopen(None).madvise(ffi.cast("void *", first), end - first, advice)
