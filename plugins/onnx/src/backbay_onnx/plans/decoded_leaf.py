"""Quantized leaves, decoded on the host."""

from __future__ import annotations

import numpy as np

from backbay import Node

from ..memory.buffers import LeafBuffer
from ..weights.store import decoded


class DecodedLeaf:
    """A quantized leaf as float32; `refresh` decodes it anew if the host has written it."""

    def __init__(self, node: Node) -> None:
        self.node, self.array = node, np.zeros(node.size, np.float32)
        self._decoded = -1  # the generation

    def refresh(self) -> None:
        leaf = self.node.leaf
        assert leaf is not None
        buffer = leaf.buffer
        assert isinstance(buffer, LeafBuffer)
        if self._decoded != buffer.generation:
            self.array[:] = decoded(buffer.read(), self.node.dtype)
            self._decoded = buffer.generation
