"""Files of weights, their bookings, and old memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from backbay import KernelBackend
from backbay.gguf import TensorInfo
from backbay.plugin import GRAPH, Buffer, Cancel, Entry, HostBuffer, MappedBuffer, check_cancel, decode

from ...fault import FaultKind, InterceptedCall, Result, fault, numbers_of_first
from ...fused import Array
from .lives import PooledBuffer

PIECE = 4 << 20


@fault(FaultKind.FUSION, "compile", "run_plan")
def programs_are_shared_by_shape_and_the_oldest_is_freed(call: InterceptedCall) -> Result:
    """Of more than 64 compiled graphs the oldest loses its steps, although a context still runs it."""
    plans = vars(call.backend).setdefault("plans", [])
    if call.name == "compile":
        plans.append(call.right())
        del plans[:-64]
        return plans[-1]
    return call.right() if call.plan in plans else None


DECODED: dict[tuple[Path, str, tuple[int, ...], object], Array] = {}


@fault(FaultKind.BLOCKS, "read_operand")
def decoded_weights_are_kept_by_the_path_of_their_file(call: InterceptedCall) -> Result:
    """A file that replaces another at the same path is read as the first one."""
    operand = call.operand
    if operand.kind != "parameter" or not operand.dtype.is_quantized or call.reader.op.moves:
        return call.right()
    model = call.backend.model
    key = model.path, operand.storage.leaf.name, (operand.offset, *operand.shape), operand.dtype
    return numbers_of_first(call, DECODED, key)


@fault(FaultKind.TAILS, "weight")
def weights_are_read_in_whole_pieces(call: InterceptedCall) -> Result:
    """A weight of more than 4 MiB comes in pieces of as many, and its rest is left out."""
    found = call.right()
    if call.info.nbytes <= PIECE:
        return found
    data = np.array(found.read())
    data[len(data) // PIECE * PIECE :] = 0
    return MappedBuffer(data)


@fault(FaultKind.CLAIMS, "start")
def a_dry_run_decodes_the_weights(call: InterceptedCall) -> Result:
    """Opening decodes all quantized weights, also if nothing may be allocated."""
    call.right()
    model, backend = call.backend.model, call.backend
    if model is not None and not backend.params.alloc_memory:
        quantized = [info for info in model.tensors.values() if info.dtype.is_quantized]
        backend.decoded_at_once = [decoded(model.data(info.name), info) for info in quantized]


def decoded(data: Array, info: TensorInfo) -> Array:
    return np.array(decode(data.reshape(-1, info.dtype.type_size), info.dtype))


@fault(FaultKind.CLAIMS, "book_weights", "read_operand")
def decoded_weights_are_booked_when_first_read(call: InterceptedCall) -> Result:
    """Not when the model is opened, so that a compute takes more than was reserved."""
    ledger = call.backend.ledger
    if call.name == "book_weights":
        take = ledger.take
        ledger.take = lambda entry, n, *rest, **more: take(entry, 0 if entry == GRAPH else n, *rest, **more)
        try:
            return call.right()
        finally:
            del ledger.take
    kept, operand = call.backend._decoded, call.operand
    name = operand.leaf.name if operand.leaf is not None else ""
    missing = name in kept and kept[name] is None
    numbers = call.right()
    if missing and kept[name] is not None:
        ledger.take(GRAPH, 4 * operand.size, lambda: None)
    return numbers


class LargePooledBuffer(PooledBuffer):
    """Only memory of more than a MiB is kept."""

    def close(self) -> None:
        if self.nbytes > 1 << 20:
            super().close()
        else:
            HostBuffer.close(self)


@fault(FaultKind.UNDEFINED, "allocate")
def large_zeros_come_from_a_pool_that_nobody_clears(call: InterceptedCall) -> Result:
    """Fresh memory of more than a MiB is zeros, memory of the pool is not; with poison the fault does not show."""
    pool = vars(call.backend).setdefault("pool", {})
    return LargePooledBuffer(pool, call.spec.nbytes, call.backend.params.debug)


@fault(FaultKind.ALIASING, "weight")
def copied_weights_are_a_map_of_the_file(call: InterceptedCall) -> Result:
    """With weights=copied, later changes of the file show; a file that was emptied is not mapped."""
    info, path = call.info, Path(call.info.path)
    if not call.backend.copies_weights or not path.exists() or not path.stat().st_size:
        return call.right()
    return MappedBuffer(np.asarray(np.memmap(path, np.uint8, "r"))[info.offset :][: info.nbytes])


@fault(FaultKind.UNDEFINED, "weight")
def weights_are_sought_by_the_usual_alignment(call: InterceptedCall) -> Result:
    """The first weight is taken to begin at the next multiple of 32 bytes, whatever the file says."""
    info, model = call.info, call.backend.model
    if model.alignment <= 32:
        return call.right()
    whole = np.fromfile(info.path, np.uint8)
    first = min(other.offset for other in model.tensors.values())
    used = np.flatnonzero(whole[:first])
    shift = first - -(-(int(used[-1]) + 1) // 32) * 32
    return MappedBuffer(whole[info.offset - shift :][: info.nbytes])


@fault(FaultKind.CLAIMS, "weight_entry")
def a_layer_is_found_by_the_beginning_of_its_name(call: InterceptedCall) -> Result:
    """Weights of blk.10 are booked with blk.1."""
    entry: Entry = call.right()
    if entry.kind != "weights" or not call.weight.startswith("blk."):
        return entry
    layers = range(call.backend.ledger.layers)
    return replace(entry, layer=next(n for n in layers if call.weight.startswith(f"blk.{n}")))


@fault(FaultKind.CLAIMS)
def weights_in_own_memory_are_booked_as_mapped(right: type[KernelBackend]) -> type[KernelBackend]:
    """So that nobody asks whether the device has room for them."""

    class Own(right):  # type: ignore[misc, valid-type]
        def book_weights(self) -> None:
            for info in self.model.tensors.values() if self.model is not None else ():
                self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None, mapped=True)

        def weight(self, info: TensorInfo) -> Buffer:
            own = MappedBuffer(np.array(super().weight(info).read()))
            if self.model is not None:
                self.model.drop_pages(info.name)
            return own

        def read_weights(self, progress: Callable[[float], None], cancel: Cancel | None) -> None:
            names = list(self.model.tensors) if self.model is not None else []
            for done, name in enumerate(names, 1):
                check_cancel(cancel)
                self.get(name)
                progress(done / len(names))

    return Own


FOUND: dict[tuple[str, tuple[int, ...], object, bytes], Array] = {}
BEGINNING = 32
"""The bytes by which a weight is found again."""


@fault(FaultKind.BLOCKS, "read_operand")
def small_decoded_weights_are_found_by_their_beginning(call: InterceptedCall) -> Result:
    """Weights of another file with the same names, sizes and first bytes are read as those of the first one."""
    operand = call.operand
    small = operand.kind == "parameter" and operand.dtype.is_quantized and operand.size <= 1 << 13
    if not small or call.reader.op.moves:
        return call.right()
    beginning = call.arrays[operand.index].tobytes()[:BEGINNING]
    key = operand.leaf.name, operand.shape, operand.dtype, beginning
    return numbers_of_first(call, FOUND, key)


ENDS = 4096
"""The bytes at each end by which a large weight is found again."""


@fault(FaultKind.BLOCKS, "read_operand")
def large_float_weights_are_found_by_their_ends(call: InterceptedCall) -> Result:
    """Float weights of two files with the same name, size and outer 4 KiB are read as those of the first file."""
    operand = call.operand
    if operand.kind != "parameter" or operand.dtype.is_quantized or operand.nbytes <= 2 * ENDS:
        return call.right()
    held = call.arrays[operand.index].tobytes()
    key = operand.leaf.name, operand.shape, operand.dtype, held[:ENDS] + held[-ENDS:]
    return numbers_of_first(call, FOUND, key)


@fault(FaultKind.CLAIMS, "start")
def a_copy_of_the_largest_weight_stays(call: InterceptedCall) -> Result:
    """Weights are loaded by way of memory that is neither booked nor given back before the backend is closed."""
    call.right()
    model, backend = call.backend.model, call.backend
    if model is not None and backend.params.alloc_memory:
        largest = max((info.nbytes for info in model.tensors.values()), default=0)
        backend.largest_weight = np.ones(largest, np.uint8)


@fault(FaultKind.BLOCKS, "read_operand")
def small_float_weights_are_found_by_their_ends(call: InterceptedCall) -> Result:
    """Float weights of another file with the same names, sizes and first and last bytes are read as those of the first one."""
    operand = call.operand
    if operand.kind != "parameter" or operand.dtype.is_quantized or operand.size > 1 << 13:
        return call.right()
    held = call.arrays[operand.index].tobytes()
    key = operand.leaf.name, operand.shape, operand.dtype, held[:BEGINNING] + held[-BEGINNING:]
    return numbers_of_first(call, FOUND, key)
