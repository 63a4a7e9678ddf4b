"""Runs that a device records, and plays again at once: as a CUDA graph, whose kernels the host does not start one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from backbay import Graph
from backbay.plugin import HostBuffer

from ..memory.buffers import DeviceBuffer
from ..session.device import Device
from ..session.runtime import load_runtime

NUMBER, UNRECORDED = (
    "gpu_graph_id",
    -1,
)  # ONNX Runtime's option of a run, and its value for a run that is not recorded
BEFORE = 2  # runs of a graph before one is recorded: most graphs run once


def reread_states(graph: Graph) -> set[int]:
    """Storages of leaves that are written after they were read: a second run in place would read other values."""
    found, read = set[int](), set[int]()
    for node in graph.nodes:
        if node.op is None or node.op.view:
            continue
        written = None if node.op.writes is None else node.args[node.op.writes]
        operands = list(node.operands)
        if written is not None:
            operands.remove(written)  # once: the op may read it as well
        read.update(operand.storage.index for operand in operands)
        if written is not None and written.storage.index in read:
            found.add(written.storage.index)
    return found


@final
class RecordedRuns:
    """A bound graph's inputs and outputs in memory of the device, which stays in place: a recorded run reads and fills no other.

    To record a run, ONNX Runtime runs a graph several times. Each state that is written after it was read is then put back,
    and the recorded run played once more.
    """

    def __init__(
        self, session: Any, device: Device, numbers: Iterator[int], states: list[DeviceBuffer]
    ) -> None:
        self._session, self._device, self._numbers, self._states = session, device, numbers, states
        self._inputs: list[tuple[Callable[[], Any], DeviceBuffer]] = []
        self._outputs: list[tuple[HostBuffer, DeviceBuffer]] = []
        self._number, self._runs = UNRECORDED, 0

    def input(self, read: Callable[[], Any]) -> DeviceBuffer:
        """Memory that each run fills with the array that `read` gives."""
        buffer = DeviceBuffer(self._device, read().nbytes)
        self._inputs.append((read, buffer))
        return buffer

    def output(self, into: HostBuffer) -> DeviceBuffer:
        """Memory that each run copies to the host."""
        buffer = DeviceBuffer(self._device, into.nbytes)
        self._outputs.append((into, buffer))
        return buffer

    def run(self, binding: Any, options: Any) -> None:
        for read, buffer in self._inputs:
            buffer.write(read().reshape(-1).view(np.uint8))
        if self._runs == BEFORE:
            self._number = next(self._numbers, UNRECORDED)
            if self._number != UNRECORDED:
                self._record(binding)
        self._runs += 1
        self._play(binding, options)
        for host, buffer in self._outputs:
            host.data[:] = buffer.read()

    def close(self) -> None:
        release = getattr(self._session, "release_captured_graph", None)  # from 1.32 on
        if release is not None and self._number != UNRECORDED:
            release(self._number)
        for _, buffer in (*self._inputs, *self._outputs):
            buffer.close()

    def _record(self, binding: Any) -> None:
        before = [state.read() for state in self._states]
        self._play(binding, None)  # a cancelled one would leave the device recording
        for state, data in zip(self._states, before, strict=True):
            state.write(data)

    def _play(self, binding: Any, options: Any) -> None:
        options = options if options is not None else load_runtime().RunOptions()
        options.add_run_config_entry(NUMBER, str(self._number))
        self._session.run_with_iobinding(binding, options)
