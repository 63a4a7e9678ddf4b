"""The devices that hold tensors and run ops, ggml's own and those of RPC servers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import final

from backbay import DeviceInfo, DType
from backbay.internals import human_bytes
from backbay.plugin import host_memory

from ..library.abi import NULL, Ptr, c_string, dtype_of, ffi, temporary_pool
from ..library.compatibility import OLDEST
from ..library.library import Library
from .device_trial import DeviceVerdict, is_known, verdict_of
from .known_faults import KNOWN_FAULTS, KNOWN_MISREADINGS, DeviceFault
from .rpc_servers import PATIENCE, RpcServer, find_server, free_server_memory, rpc_session, session_lock

GPUS = (1, 2)  # of enum ggml_backend_dev_type: GPUs with memory of their own, and GPUs that share the host's
WEIGHTS = 1  # of enum ggml_backend_buffer_usage
UNALLOCATED: Ptr = ffi.cast("void *", 64)  # the address of tensors in a dry run
CELLS = 256  # of a cache that devices are asked about, by ops that are never run
RPC_LIMIT = 1 << 32  # RPC sends extents and strides in 32 bits

logger = logging.getLogger("backbay.ggml")


@final
class Device:
    """One device, by its id."""

    def __init__(
        self,
        library: Library,
        id: str,
        handle: Ptr,
        server: RpcServer | None = None,
        verdict: DeviceVerdict | None = None,
    ) -> None:
        self.id, self.handle, self.server = id, handle, server
        self.verdict = verdict  # None for the CPU and for servers, which are not tried
        self.is_cpu = handle == library.cpu
        self._library, self._lib = library, library.lib
        self._empty_buffer: Ptr = NULL
        with self.turn(), self.session():
            self.buffer_type: Ptr = self._lib.ggml_backend_dev_buffer_type(handle)
            self.alignment = int(self._lib.ggml_backend_buft_get_alignment(self.buffer_type))

    def turn(self) -> AbstractContextManager[object]:
        """The lock to be held around a session: a server is used by one thread at a time."""
        return nullcontext() if self.server is None else session_lock()

    def session(self) -> AbstractContextManager[None]:
        """Must surround every call that reaches the device."""
        return nullcontext() if self.server is None else rpc_session(self.server)

    def info(self) -> DeviceInfo:
        name = c_string(self._lib.ggml_backend_dev_description(self.handle))
        if self.is_cpu and self.server is None:  # ggml says that all of it is free, even in a container
            total, free = host_memory()
            return DeviceInfo(self.id, name, total_memory=total, free_memory=free)
        free, total = self.memory()
        if self.server is not None:
            return DeviceInfo(self.id, f"RPC server {self.server.endpoint}", True, total, free)
        return DeviceInfo(self.id, name, True, total, free, hardware_id(self._library, self.handle))

    def memory(self) -> tuple[int, int]:
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        with self.turn(), self.session():
            self._lib.ggml_backend_dev_memory(self.handle, free, total)
        return int(free[0]), int(total[0])

    def why_no_room(self) -> str:
        free, total = self.memory()
        return f"{human_bytes(free)} of its {human_bytes(total)} are free"

    def supports(self, tensor: Ptr) -> bool:
        """Whether the device runs an op.

        A server claims to run everything, and dies over an op that it lacks. So it is taken for a CPU like ours.
        """
        if self._fails(KNOWN_FAULTS, tensor, tensor.src[0]):
            return False
        if self.server is None:
            return bool(self._lib.ggml_backend_dev_supports_op(self.handle, tensor))
        sent = [tensor, *(source for source in tensor.src if source != NULL)]
        fits = all(max(*t.ne, *t.nb) < RPC_LIMIT for t in sent)
        return fits and bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, tensor))

    def _fails(self, faults: Sequence[DeviceFault], tensor: Ptr, source: Ptr) -> bool:
        if self.verdict is None or source == NULL:
            return False
        name = c_string(self._lib.ggml_op_desc(tensor))
        return any(
            name in fault.ops and not self.verdict.takes(fault.case) and fault.concerns(tensor, source)
            for fault in faults
        )

    def misreads(self, tensor: Ptr, source: Ptr) -> bool:
        """Whether an op on the device misreads the strides of an operand, wherever the operand lies."""
        return self._fails(KNOWN_MISREADINGS, tensor, source)

    def reads(self, tensor: Ptr, source: Ptr) -> bool:
        """Whether an op on the device reads an operand as it lies there."""
        if self.verdict is None:
            return True
        is_placed = not self._is_misplaced(source) or self.verdict.takes(self._case(tensor, source))
        return is_placed and not self.misreads(tensor, source)

    def writes(self, tensor: Ptr) -> bool:
        """Whether an op that writes into a leaf on the device hits the right place."""
        if self.verdict is None or not self._is_misplaced(tensor):
            return True
        return self.verdict.takes(f"into {self._case(tensor, tensor)}")

    def _is_misplaced(self, tensor: Ptr) -> bool:
        return bool(tensor.view_src != NULL and tensor.view_offs % self.alignment)

    def _case(self, tensor: Ptr, source: Ptr) -> str:
        dtype = dtype_of(source)
        return c_string(self._lib.ggml_op_name(tensor.op)) + ("" if dtype is DType.F32 else f" {dtype}")

    def attends(self, head: int, dtype: DType = DType.F16) -> bool:
        """Whether the device has flash attention for heads of this size, over a cache of this dtype."""
        with temporary_pool(self._lib) as pool:
            new = partial(self._lib.ggml_new_tensor_4d, pool)
            q, mask = new(int(DType.F32), head, 2, 4, 1), new(int(DType.F16), CELLS, 2, 1, 1)
            k, v = (new(int(dtype), head, CELLS, 2, 1) for _ in range(2))
            return self.supports(self._lib.ggml_flash_attn_ext(pool, q, k, v, mask, 1.0, 0.0, 0.0))

    def stores(self, dtype: DType) -> bool:
        """Whether the device writes rows of f32 into a cache of a dtype."""
        with temporary_pool(self._lib) as pool:
            new = partial(self._lib.ggml_new_tensor_4d, pool)
            cache, rows = new(int(dtype), 128, CELLS, 1, 1), new(int(DType.F32), 128, 2, 1, 1)
            return self.supports(self._lib.ggml_set_rows(pool, cache, rows, new(int(DType.I32), 2, 1, 1, 1)))

    def size(self, tensor: Ptr) -> int:
        """The bytes that a tensor takes on the device, rounded up to its alignment."""
        with self.turn(), self.session():
            size = int(self._lib.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor))
        return rounded_up(size, self.alignment)

    def allocate(self, nbytes: int) -> Ptr:
        """A buffer on the device; MemoryError if it does not fit."""
        with self.turn(), self.session():
            made = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, nbytes)
        if made == NULL:
            raise MemoryError(self.why_no_room())
        return made

    def free(self, free: Callable[[], None]) -> None:
        """Free something on the device, now or when it is no longer busy; may be called at any time."""
        if self.server is None:
            free()
        else:
            free_server_memory((self.server,), free)

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
    """The CPU, the GPUs that ggml reports and that pass their trial, and the devices of RPC servers."""
    found = [Device(library, f"{driver_name(library, library.cpu)}:0", library.cpu)]
    for id, handle, verdict in tried_gpus(library):
        if verdict is None or not verdict.why_not:
            found.append(Device(library, id, handle, verdict=verdict))
        else:
            _warn_once(id, verdict.why_not)
    count: Counter[str] = Counter()
    for endpoint in endpoints:
        server = find_server(library, endpoint, patience)
        for handle in server.devices:
            kind = driver_name(library, handle)
            found.append(Device(library, f"{kind}:{count[kind]}", handle, server))
            count[kind] += 1
    return found


@cache
def _warn_once(id: str, why_not: str) -> None:
    logger.warning("%s is not used: %s", id, why_not)


def tried_gpus(library: Library) -> Iterator[tuple[str, Ptr, DeviceVerdict | None]]:
    """The GPUs that ggml reports, with their verdicts."""
    count: Counter[str] = Counter()
    for handle in reported_gpus(library):
        kind = driver_name(library, handle)
        id = f"{kind}:{count[kind]}"
        count[kind] += 1
        verdict = verdict_of(library, id, f"{kind} {device_description(library, handle)}")
        if verdict is not None and not library.avoidances:
            verdict = replace(verdict, heeded=False)
        yield id, handle, verdict


def untried_gpus(library: Library) -> int:
    """The number of kinds of GPUs that have no verdict yet."""
    kinds = {
        f"{driver_name(library, handle)} {device_description(library, handle)}"
        for handle in reported_gpus(library)
    }
    return sum(not is_known(library, kind) for kind in kinds)


def reported_gpus(library: Library) -> list[Ptr]:
    return [handle for handle in library.devices() if library.lib.ggml_backend_dev_type(handle) in GPUS]


def driver_name(library: Library, handle: Ptr) -> str:
    """The name of the code that drives a device, such as CUDA."""
    return c_string(library.lib.ggml_backend_reg_name(library.lib.ggml_backend_dev_backend_reg(handle)))


def hardware_id(library: Library, handle: Ptr) -> str | None:
    """The PCI address of a device; None if ggml does not know it, or is too old to say."""
    if library.number < OLDEST:
        return None
    facts = ffi.new("ggml_backend_dev_props *")
    library.lib.ggml_backend_dev_get_props(handle, facts)
    return c_string(facts.device_id) or None


def device_description(library: Library, handle: Ptr) -> str:
    return c_string(library.lib.ggml_backend_dev_description(handle))
