"""The backend: core runs the kernels, in float64, and rounds once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from operator import index as integer
from typing import Any, ClassVar

import numpy as np

from backbay import BackendParams, CacheConfig, DType, KernelBackend, Node, Option
from backbay.gguf import ModelFile
from backbay.plugin import GRAPH

from .ops import KERNELS
from .ops.kernel_table import Array
from .working_memory import working_memory

__all__ = ["CpuRef"]

EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"


def _byte_count(value: Any) -> int:
    count = integer(value)
    if count < 0:
        raise ValueError("it is negative")
    return count


class CpuRef(KernelBackend):
    """The reference: NumPy, float64 inside of each op.

    The first quantized weights of the file that fit into the option `decoded_weights` (bytes) are decoded on first use
    and kept as float32. Other weights are decoded each time. The memory of kept weights is booked with the graph, when
    the model is opened. If `max_memory` limits the CPU, none are kept.
    """

    contract_version = "1.2"
    kernels = KERNELS
    priority = -100  # "auto" takes it last
    float_dtype = np.float64
    options: ClassVar[Mapping[str, Option]] = {
        "decoded_weights": Option(1 << 30, _byte_count, "how many bytes of decoded weights to keep")
    }

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        super().__init__(model, params)
        self._decoded: dict[str, Array | None] = {}  # kept weights by name; None until first used

    def cache_config(self) -> CacheConfig:
        return CacheConfig(dtypes=(DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0))

    def book_weights(self) -> None:
        super().book_weights()
        limited = self.ledger.devices[0][0] in self.params.max_memory
        room = 0 if limited else self.option_values["decoded_weights"]
        tensors = self.model.tensors if self.model is not None else {}
        for info in tensors.values():
            nbytes = 4 * prod(info.shape)
            looked_up = info.name == EMBEDDINGS and OUTPUT in tensors  # rows are read as they are stored
            if info.dtype.is_quantized and nbytes <= room and not looked_up:
                room -= nbytes
                self.ledger.take(GRAPH, nbytes, lambda: None)
                self._decoded[info.name] = None

    def read_operand(self, reader: Node, operand: Node, arrays: Sequence[Array]) -> Array:
        name = operand.leaf.name if operand.leaf is not None and operand.kind == "parameter" else None
        if name not in self._decoded or (reader.op is not None and reader.op.moves):
            return super().read_operand(reader, operand, arrays)
        kept = self._decoded[name]
        if kept is None:
            room = np.empty(operand.shape[::-1], np.float32)
            kept = self._decoded[name] = self.numbers(arrays[operand.index], operand.dtype, room)
        return self.numbers(kept, DType.F32)

    def working_memory(self, node: Node) -> int:
        return super().working_memory(node) + working_memory(node)

    def release(self) -> None:
        self._decoded.clear()
