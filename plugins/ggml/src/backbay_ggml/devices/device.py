"""The devices that hold tensors and run ops: ggml's own, and those of RPC servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import final

from backbay import DeviceInfo
from backbay.plugin import host_memory

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library, text
from .rpc_servers import PATIENCE, RpcServer, find_server, free_on, session

GPUS = (1, 2)  # of enum ggml_backend_dev_type: GPUs with memory of their own, and GPUs that share the host's
WEIGHTS = 1  # of enum ggml_backend_buffer_usage
UNALLOCATED: Ptr = ffi.cast("void *", 64)  # the address of tensors in a dry run
RPC_LIMIT = 1 << 32  # RPC sends extents and strides in 32 bits


@final
class Device:
    """One device, by its id."""

    def __init__(self, library: Library, id: str, handle: Ptr, server: RpcServer | None = None) -> None:
        self.id, self.handle, self.server = id, handle, server
        self.is_cpu = handle == library.cpu
        self._library, self._lib = library, library.lib
        self._empty_buffer: Ptr = NULL
        with self.session():
            self.buffer_type: Ptr = self._lib.ggml_backend_dev_buffer_type(handle)
            self.alignment = int(self._lib.ggml_backend_buft_get_alignment(self.buffer_type))

    def session(self) -> AbstractContextManager[None]:
        """Must surround every call that reaches the device: a server is used by one thread at a time."""
        return nullcontext() if self.server is None else session(self.server)

    def info(self) -> DeviceInfo:
        name = text(self._lib.ggml_backend_dev_description(self.handle))
        if (
            self.is_cpu and self.server is None
        ):  # for ggml, all of the host's memory is free, even in a container
            total, free = host_memory()
            return DeviceInfo(self.id, name, total_memory=total, free_memory=free)
        free, total = self.memory()
        name = name if self.server is None else f"RPC server {self.server.endpoint}"
        return DeviceInfo(self.id, name, is_gpu=not self.is_cpu, total_memory=total, free_memory=free)

    def memory(self) -> tuple[int, int]:
        """Free bytes, and all bytes, as the device's library says."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        with self.session():
            self._lib.ggml_backend_dev_memory(self.handle, free, total)
        return int(free[0]), int(total[0])

    def supports(self, tensor: Ptr) -> bool:
        """Whether the device runs an op.

        A server claims to run everything, and dies over an op that it lacks. So it is taken for a CPU like ours.
        """
        if self.server is None:
            return bool(self._lib.ggml_backend_dev_supports_op(self.handle, tensor))
        sent = [tensor, *(source for source in tensor.src if source != NULL)]
        fits = all(max(*t.ne, *t.nb) < RPC_LIMIT for t in sent)
        return fits and bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, tensor))

    def size(self, tensor: Ptr) -> int:
        """The bytes that a tensor takes on the device, rounded up to its alignment."""
        with self.session():
            size = int(self._lib.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor))
        return rounded_up(size, self.alignment)

    def allocate(self, nbytes: int) -> Ptr:
        """A buffer on the device; MemoryError if it does not fit."""
        with self.session():
            made = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, nbytes)
        if made == NULL:
            raise MemoryError(f"{self.id} has no memory left")
        return made

    def free(self, free: Callable[[], None]) -> None:
        """Free something on the device, now or when it is no longer busy; may be called at any time."""
        if self.server is None:
            free()
        else:
            free_on((self.server,), free)

    def stand_in(self, tensor: Ptr) -> Ptr:
        """Let a tensor belong to this device without any memory, for a dry run."""
        if self._empty_buffer == NULL:
            self._empty_buffer = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, 0)
        tensor.buffer, tensor.data = self._empty_buffer, UNALLOCATED
        return tensor

    def close(self) -> None:
        if self._empty_buffer != NULL:
            self._lib.ggml_backend_buffer_free(self._empty_buffer)
            self._empty_buffer = NULL


def rounded_up(nbytes: int, step: int) -> int:
    """The smallest multiple of a step that is not less than some bytes."""
    return -(-nbytes // step) * step


def find_devices(library: Library, endpoints: Iterable[str], patience: float = PATIENCE) -> list[Device]:
    """The CPU, the GPUs that ggml reports, and the devices of RPC servers."""
    count: Counter[str] = Counter()

    def device(handle: Ptr, server: RpcServer | None = None) -> Device:
        registry = library.lib.ggml_backend_dev_backend_reg(handle)
        kind = text(library.lib.ggml_backend_reg_name(registry))
        count[kind] += 1
        return Device(library, f"{kind}:{count[kind] - 1}", handle, server)

    found = [device(library.cpu)]
    gpus = [handle for handle in library.devices() if library.lib.ggml_backend_dev_type(handle) in GPUS]
    found += [device(handle) for handle in gpus]
    for endpoint in endpoints:
        server = find_server(library, endpoint, patience)
        found += [device(handle, server) for handle in server.devices]
    return found
