"""The devices that ggml reports: where tensors may lie, and what computes there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import final

from backbay import DeviceInfo

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library, text
from .rpc_servers import Remote, remote
from .rpc_servers import free as free_there
from .rpc_servers import session as session_with

CPU = "CPU:0"
PLACES = (1, 2)  # of enum ggml_backend_dev_type: GPUs of their own memory, and those that share the host's
WEIGHTS = 1  # of enum ggml_backend_buffer_usage
UNALLOCATED: Ptr = ffi.cast("void *", 64)  # an address for tensors that are only measured
COUNTED = 1 << 32  # extents and strides, in what RPC sends


@final
class Device:
    """One device, by its id."""

    def __init__(self, library: Library, id: str, handle: Ptr, server: Remote | None = None) -> None:
        self.id, self.handle, self.server = id, handle, server
        self.is_cpu = handle == library.cpu
        self._library, self._lib = library, library.lib
        self._stand_in: Ptr = NULL
        with self.session():
            self.buffer_type: Ptr = self._lib.ggml_backend_dev_buffer_type(handle)
            self.alignment = int(self._lib.ggml_backend_buft_get_alignment(self.buffer_type))

    def session(self) -> AbstractContextManager[None]:
        """Whatever reaches the device happens within it: one thread at a time, where the device needs that."""
        return nullcontext() if self.server is None else session_with(self.server)

    def info(self) -> DeviceInfo:
        free, total = self.memory()
        name = text(self._lib.ggml_backend_dev_description(self.handle))
        name = name if self.server is None else f"RPC server {self.server.endpoint}"
        return DeviceInfo(self.id, name, is_gpu=not self.is_cpu, total_memory=total, free_memory=free)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        with self.session():
            self._lib.ggml_backend_dev_memory(self.handle, free, total)
        return int(free[0]), int(total[0])

    def supports(self, tensor: Ptr) -> bool:
        """Whether the device runs an op.

        A server says yes to everything, and ends where that is not so: it is taken for a CPU, as ours are.
        """
        if self.server is None:
            return bool(self._lib.ggml_backend_dev_supports_op(self.handle, tensor))
        sent = [tensor, *(source for source in tensor.src if source != NULL)]
        fits = all(max(*t.ne, *t.nb) < COUNTED for t in sent)
        return fits and bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, tensor))

    def size(self, tensor: Ptr) -> int:
        """The bytes that a tensor takes there, up to where the next one may begin."""
        with self.session():
            size = int(self._lib.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor))
        return -(-size // self.alignment) * self.alignment

    def allocate(self, nbytes: int) -> Ptr:
        """A buffer; MemoryError if there is no room for it."""
        with self.session():
            made = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, nbytes)
        if made == NULL:
            raise MemoryError(f"{self.id} has no memory left")
        return made

    def free(self, free: Callable[[], None]) -> None:
        """Free something there; it may be called at any time."""
        if self.server is None:
            free()
        else:
            free_there((self.server,), free)

    def measured(self, tensor: Ptr) -> Ptr:
        """A tensor that gets no memory, and is known to belong here all the same."""
        if self._stand_in == NULL:
            self._stand_in = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, 0)
        tensor.buffer, tensor.data = self._stand_in, UNALLOCATED
        return tensor

    def close(self) -> None:
        if self._stand_in != NULL:
            self._lib.ggml_backend_buffer_free(self._stand_in)
            self._stand_in = NULL


def find_devices(library: Library, endpoints: Iterable[str]) -> list[Device]:
    """The CPU, what else ggml reports to have room for tensors, and the devices of RPC servers."""
    count: Counter[str] = Counter()

    def device(handle: Ptr, server: Remote | None = None) -> Device:
        registry = library.lib.ggml_backend_dev_backend_reg(handle)
        kind = text(library.lib.ggml_backend_reg_name(registry))
        count[kind] += 1
        return Device(library, f"{kind}:{count[kind] - 1}", handle, server)

    found = [device(library.cpu)]
    places = [handle for handle in library.devices() if library.lib.ggml_backend_dev_type(handle) in PLACES]
    found += [device(handle) for handle in places]
    for endpoint in endpoints:
        server = remote(library, endpoint)
        found += [device(handle, server) for handle in server.devices]
    return found
