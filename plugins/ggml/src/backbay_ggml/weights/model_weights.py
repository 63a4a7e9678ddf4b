"""All weights of a model: where each lies, its copies for products, and the memory of both.

Copies on the CPU lie in memory that is faster than a mapped file: rearranged, on huge pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from mmap import PAGESIZE
from typing import final

import numpy as np

from backbay import Buffer, DType, Node, Spec
from backbay.gguf import ModelFile, TensorInfo
from backbay.internals import Bytes, Ledger
from backbay.plugin import Cancel, Entry, Progress, check_cancel

from ..devices.device import WEIGHTS, Device, rounded_up
from ..library.abi import NULL, Ptr, ffi, leaf_tensor, tensor_address
from ..library.library import Library
from ..tensors.buffers import WeightBuffer
from .arrangements import REPACK, WeightArrangement, usable_arrangements

MAPPED, COPIED, AUTO = "mapped", "copied", "auto"  # policies
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
MADV_HUGEPAGE = 14
ALIGNMENT = 64
READERS = 4  # threads that rearrange; more of them would wait for memory
CHUNK = 1 << 12  # blocks that are searched at a time


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
        self._chosen: dict[str, WeightArrangement | None] = {}  # by name
        self._buffers: list[Ptr] = []
        self.copies: dict[str, Ptr] = {}

    def arrangement(self, info: TensorInfo) -> WeightArrangement | None:
        """The arrangement of a weight, if it is multiplied, and one takes it."""
        if info.name not in self._chosen:
            # Embeddings are only looked up, unless they serve as the output's weights too.
            is_looked_up = info.name == EMBEDDINGS and not is_tied(self._model)
            tried = [] if is_looked_up or info.name in self._multiplied_elsewhere else self._arrangements
            fitting = (each for each in tried if each.tensor(info.dtype, info.shape) is not None)
            self._chosen[info.name] = next(fitting, None)
        return self._chosen[info.name]

    def multiplies_natively(self, dtype: DType) -> bool:
        """Whether native code multiplies weights of this dtype wherever they are rearranged."""
        return all(
            each.name == REPACK and dtype in each.native for each in self._arrangements if each.takes(dtype)
        )

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
        arrangement = self.arrangement(info)
        assert arrangement is not None
        tensor = arrangement.tensor(info.dtype, info.shape)
        assert tensor is not None
        return tensor, arrangement.size(tensor)

    def _allocate(self, infos: list[TensorInfo], arrangement: WeightArrangement) -> None:
        nbytes = self.size(infos) + ALIGNMENT
        nbytes += max(arrangement.extra_size(self._new_copy(info)[0]) for info in infos)
        memory = self._lib.ggml_backend_buft_alloc_buffer(arrangement.buffer_type, nbytes)
        if memory == NULL:
            raise MemoryError("the system gave ggml no memory")
        self._buffers.append(memory)
        base = tensor_address(self._lib.ggml_backend_buffer_get_base(memory))
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


@final
class DeviceWeights:
    """The weights of a model that lie on devices, and devices' copies of weights that lie on the host."""

    def __init__(self, library: Library, model: ModelFile) -> None:
        self._lib, self._model = library.lib, model
        self._buffers: list[tuple[Device, Ptr]] = []
        self.placed: dict[str, tuple[Ptr, Device]] = {}

    def size(self, device: Device, infos: Iterable[TensorInfo]) -> int:
        return sum(device.size(leaf_tensor(info.dtype, info.shape)) for info in infos)

    def allocate(self, device: Device, infos: list[TensorInfo]) -> None:
        """Allocate weights in one buffer; MemoryError if the device has no room."""
        tensors = [leaf_tensor(info.dtype, info.shape) for info in infos]
        sizes = [device.size(tensor) for tensor in tensors]
        memory = device.allocate(sum(sizes) + device.alignment)
        self._buffers.append((device, memory))
        with device.turn(), device.session():
            self._lib.ggml_backend_buffer_set_usage(memory, WEIGHTS)
            place = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(memory))
            for info, tensor, size in zip(infos, tensors, sizes, strict=True):
                self._lib.ggml_backend_tensor_alloc(memory, tensor, place)
                self.placed[info.name] = tensor, device
                place += size

    def load(self, progress: Callable[[int], None], cancel: Cancel | None) -> None:
        for name, (tensor, device) in self.placed.items():
            check_cancel(cancel)
            data = self._model.data(name)
            with device.turn(), device.session():
                self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)
            progress(data.size)
        for device in {device for device, _ in self._buffers}:
            device.memory()  # a server answers once it has received all that was sent before

    def close(self) -> None:
        for device, memory in self._buffers:
            device.free(lambda memory=memory: self._lib.ggml_backend_buffer_free(memory))  # type: ignore[misc]
        self._buffers.clear()
        self.placed.clear()


@final
class ModelWeights:
    """The weights of a model. `output` is the device of the output layer; `policy` is the option `weights`."""

    def __init__(
        self,
        library: Library,
        model: ModelFile,
        ledger: Ledger,
        devices: Sequence[Device],
        output: Device,
        policy: str,
    ) -> None:
        self._library, self._model, self._ledger, self._devices = library, model, ledger, devices
        self._holds_all = policy == COPIED  # core keeps the bytes of all weights in memory
        self._tied_output = output if is_tied(model) and not output.is_cpu else None
        self._multiplied_elsewhere = {EMBEDDINGS} if self._tied_output is not None else set()
        self.on_cpu = CpuWeights(library, model, policy, self._multiplied_elsewhere)
        self._on_devices = DeviceWeights(library, model)
        self._has_signs: dict[str, bool] = {}

    # -- memory ------------------------------------------------------------------------------------------

    def book(self, entry_of: Callable[[str], Entry]) -> None:
        """Book all weights under their entries, and allocate their copies; mapped weights are only booked."""
        infos_by_entry: dict[Entry, list[TensorInfo]] = {}
        for name, info in self._model.tensors.items():
            infos_by_entry.setdefault(entry_of(name), []).append(info)
        if self._holds_all:
            self._book_bytes_of_devices(infos_by_entry)
        if self._tied_output is not None:
            output = self._ledger.layers - 1
            entry = Entry(self._tied_output.id, "weights", output)
            infos_by_entry.setdefault(entry, []).append(self._model.tensors[EMBEDDINGS])
        devices = {device.id: device for device in self._devices}
        try:
            for entry, infos in infos_by_entry.items():
                device = devices[entry.device]
                if device.is_cpu:
                    self._book_on_cpu(entry, infos)
                else:
                    nbytes = self._on_devices.size(device, infos)
                    self._take(entry, nbytes, partial(self._on_devices.allocate, device, infos))
        except BaseException:
            self.close()
            raise

    def _book_on_cpu(self, entry: Entry, infos: Iterable[TensorInfo]) -> None:
        copied = [info for info in infos if self.on_cpu.is_copied(info)]
        held = sum(info.nbytes for info in infos if self._holds_all or not self.on_cpu.is_copied(info))
        self._ledger.take(entry, held, lambda: None)
        self._take(entry, self.on_cpu.size(copied), lambda: self.on_cpu.allocate(copied))

    def _book_bytes_of_devices(self, infos_by_entry: Mapping[Entry, Iterable[TensorInfo]]) -> None:
        cpu = self._devices[0].id
        others = [infos for entry, infos in infos_by_entry.items() if entry.device != cpu]
        nbytes = sum(info.nbytes for infos in others for info in infos)
        self._ledger.take(Entry(cpu, "input_weights"), nbytes, lambda: None)

    def _take(self, entry: Entry, nbytes: int, allocate: Callable[[], None]) -> None:
        self._ledger.take(entry, nbytes, lambda: allocate() if self._ledger.holds else None, mapped=False)

    def load(self, progress: Progress, cancel: Cancel | None) -> None:
        """Fill copies and devices from the file."""
        names = [*self.on_cpu.copies, *self._on_devices.placed]
        total, done = sum(self._model.tensors[name].nbytes for name in names) or 1, 0

        def count(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done / total)

        self.on_cpu.load(count, cancel)
        self._on_devices.load(count, cancel)

    def close(self) -> None:
        self.on_cpu.close()
        self._on_devices.close()

    # -- one weight --------------------------------------------------------------------------------------

    def buffer(self, info: TensorInfo) -> Buffer:
        """A weight's memory: on its device, or in the mapped file, perhaps with a copy for products."""
        data, spec = self._model.data(info.name), Spec(info.dtype, info.shape)
        placed = self._on_devices.placed.get(info.name)
        if placed is not None and self.product_home(info.name) is None:
            return WeightBuffer(self._library, placed[1], data, spec, placed=placed[0])
        cpu, copy = self._devices[0], self.on_cpu.copies.get(info.name)
        product = placed or (None if copy is None else (copy, cpu))
        return WeightBuffer(self._library, cpu, data, spec, product=product)

    def product_home(self, name: str) -> Device | None:
        """The device with a copy of a weight that lies on the host, for products: of tied embeddings."""
        return self._tied_output if name == EMBEDDINGS else None

    def stand_in(self, name: str) -> Ptr | None:
        """A tensor in place of the CPU's rearranged copy of a weight, for dry runs; None if there is none."""
        info = self._model.tensors.get(name)
        return None if info is None else self.on_cpu.stand_in(info)

    def arrangement(self, weight: Node) -> WeightArrangement | None:
        """The arrangement of the CPU's copy of a weight; None if there is no such copy."""
        info = self._model.tensors.get(weight.storage.leaf.name) if weight.storage.leaf is not None else None
        return None if info is None else self.on_cpu.arrangement(info)

    def has_signs(self, weight: Node) -> bool:
        """Whether each code of a q8_0 weight has an opposite. Quantizers make no -128, but other programs may.

        A weight is searched once. Leaves have not, because their data may change at any time.
        """
        leaf = weight.storage.leaf
        if leaf is None or weight.storage.kind != "parameter":
            return False
        if not self._ledger.holds:
            return True  # the usual case; the other one needs hardly more or less memory
        if leaf.name not in self._has_signs:
            self._has_signs[leaf.name] = not has_lowest_code(self._model.data(leaf.name))
        return self._has_signs[leaf.name]


def has_lowest_code(data: Bytes) -> bool:
    """Whether a code of these q8_0 blocks is -128, which has no opposite."""
    size = DType.Q8_0.type_size
    for start in range(0, data.size, CHUNK * size):
        places = np.flatnonzero(data[start : start + CHUNK * size] == 128)
        if (places % size > 1).any():  # the first two bytes are the scale
            return True
    return False


def is_tied(model: ModelFile) -> bool:
    """Whether the embeddings serve as the output's weights too."""
    return EMBEDDINGS in model.tensors and OUTPUT not in model.tensors


def _advise(start: int, nbytes: int, advice: int) -> None:
    """Advise the system on the whole pages of a range; it may ignore it."""
    first, end = rounded_up(start, PAGESIZE), (start + nbytes) // PAGESIZE * PAGESIZE
    if end > first and sys.platform == "linux":
        ffi.dlopen(None).madvise(ffi.cast("void *", first), end - first, advice)
