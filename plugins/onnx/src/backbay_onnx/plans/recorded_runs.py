"""Runs that the device records, as CUDA graphs: one call then starts all nodes of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from backbay import Graph
from backbay.plugin import HostBuffer

from ..memory.buffers import DeviceBuffer
from ..session.device import Device
from ..session.runtime import load_runtime, translate_errors
from ..session.session import LOG

NUMBER = "gpu_graph_id"  # ONNX Runtime's option of a run
UNRECORDED = -1  # its value for a run that is neither recorded nor played
RELEASE = "release_captured_graph"  # of a session, from ONNX Runtime 1.32 on
RUNS_BEFORE = 2  # of a graph, before one is recorded: most graphs run once


def reads_before_writes(graph: Graph) -> bool:
    """Whether a leaf is written after it was read, so that a second run would compute other values."""
    read = set[int]()
    for node in graph.nodes:
        if node.op is None or node.op.view:
            continue
        written = None if node.op.writes is None else node.args[node.op.writes]
        operands = list(node.operands)
        if written is not None:
            operands.remove(written)  # once: the op may read it as well
        read.update(operand.storage.index for operand in operands)
        if written is not None and written.storage.index in read:
            return True
    return False


@final
class RecordedRuns:
    """What a bound graph reads and fills, in memory of the device that stays in place, and the record of a run.

    While ONNX Runtime records a run, it runs the graph twice or more: so `states` are put back, and the record is played.
    A record belongs to its thread. On other threads, runs go without.
    """

    def __init__(
        self, session: Any, device: Device, numbers: Iterator[int], states: list[DeviceBuffer]
    ) -> None:
        self._session, self._device, self._numbers, self._states = session, device, numbers, states
        self._buffers: list[DeviceBuffer] = []
        self._inputs: list[tuple[Callable[[], Any], DeviceBuffer]] = []
        self._outputs: list[tuple[HostBuffer, DeviceBuffer]] = []
        self._runs = 0
        self._here = threading.local()  # its number: that of the record

    def fixed(self, data: Any) -> DeviceBuffer:
        """Memory with data that no run changes."""
        buffer = self._buffer(data.nbytes)
        buffer.write(_bytes(data))
        return buffer

    def input(self, read: Callable[[], Any]) -> DeviceBuffer:
        """Memory that each run fills with the array that `read` gives."""
        buffer = self._buffer(read().nbytes)
        self._inputs.append((read, buffer))
        return buffer

    def output(self, into: HostBuffer) -> DeviceBuffer:
        """Memory that each run copies to the host."""
        buffer = self._buffer(into.nbytes)
        self._outputs.append((into, buffer))
        return buffer

    def run(self, binding: Any, options: Any) -> None:
        for read, buffer in self._inputs:
            buffer.write(_bytes(read()))
        if self._runs == RUNS_BEFORE:
            self._record(binding)
        self._runs += 1
        self._play(binding, options, getattr(self._here, "number", UNRECORDED))
        for host, buffer in self._outputs:
            host.data[:] = buffer.read()

    def close(self) -> None:
        """A record that another thread made stays until the session ends."""
        for buffer in self._buffers:
            buffer.close()
        number, release = getattr(self._here, "number", UNRECORDED), getattr(self._session, RELEASE, None)
        self._inputs.clear()  # what reads them holds the bound graph
        if release is not None and number != UNRECORDED:
            with translate_errors("releasing a record"):
                release(number)

    def _buffer(self, nbytes: int) -> DeviceBuffer:
        self._buffers.append(DeviceBuffer(self._device, nbytes))
        return self._buffers[-1]

    def _record(self, binding: Any) -> None:
        number = next(self._numbers, None)
        if number is None:
            LOG.info("a session has recorded as many runs as it may; others go without")
            return
        before = [state.read() for state in self._states]
        try:
            self._play(binding, None, number)  # not to be cancelled: the device would go on recording
            self._here.number = number
            LOG.info("recorded a run, number %d of its session", number)
        except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class
            LOG.warning("a run could not be recorded, and no other one of its session will be: %s", error)
            for _ in self._numbers:
                pass
        finally:
            for state, data in zip(self._states, before, strict=True):
                state.write(data)

    def _play(self, binding: Any, options: Any, number: int) -> None:
        options = options if options is not None else load_runtime().RunOptions()
        options.add_run_config_entry(NUMBER, str(number))
        self._session.run_with_iobinding(binding, options)


def _bytes(data: Any) -> Any:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
