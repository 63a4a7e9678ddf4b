"""A traced pass of an encoder over pictures of one shape, cut into chunks between which other work gets its turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Tensor
from backbay.plugin import Cancel

from .contract import Inputs, Network
from .prepared import Prepared

WORK = 20e9  # multiplications of a chunk; a chunk has one block at least
NODES = 1 << 15  # of a chunk; attention over many positions has many tiles
STATE = -1  # among the leaves of kept states, which have the numbers of blocks


@final
class Pass:
    """Contexts that are computed one after the other. Leaves of the first carry the state from chunk to chunk.

    A whole pass is one chunk, to be looked into.

        states    the states of a whole pass: after the start, and after each block
        result    the rows of all pictures, (width, rows)
    """

    def __init__(
        self, backend: Backend, network: Network, pictures: Sequence[Prepared], *, whole: bool = False
    ) -> None:
        self.network, self._whole = network, whole
        self._contexts: list[Context] = []
        self.states: list[Tensor] = []
        try:
            self._trace(backend, pictures)
        except BaseException:
            self.close()
            raise

    @property
    def ctx(self) -> Context:
        """The context of a whole pass."""
        return self._contexts[0]

    @property
    def chunks(self) -> int:
        return len(self._contexts)

    @property
    def nodes(self) -> int:
        return sum(ctx.counters.traced_nodes for ctx in self._contexts)

    def fill(self, pictures: Sequence[Prepared]) -> None:
        """Fill the leaves with as many other pictures of the same shape."""
        self.inputs.fill(pictures)

    def reserve(self) -> None:
        for ctx in self._contexts:
            ctx.reserve()

    def compute(self, chunk: int, cancel: Cancel | None = None) -> None:
        """Compute one chunk; all chunks before it must have been computed with the same pictures."""
        ctx = self._contexts[chunk]
        ctx.compute(*([self.result] if chunk == self.chunks - 1 else []), cancel=cancel)

    def rows(self) -> NDArray[np.float32]:
        """(rows, width) of all pictures."""
        return self.result.numpy().astype(np.float32, copy=False)

    def close(self) -> None:
        while self._contexts:
            self._contexts.pop().close()

    def _trace(self, backend: Backend, pictures: Sequence[Prepared]) -> None:
        network = self.network
        ctx = self._next(backend)
        self.inputs = inputs = Inputs(ctx, pictures)
        x = network.start(ctx.layer(0), inputs)
        ctx.set_batch_size(x.dim(1))
        self.states.append(x)
        per_chunk = network.blocks if self._whole else max(1, int(WORK // self._work(x)))
        kept: dict[int, Tensor] = {}
        held: dict[int, Tensor] = {}  # leaves of states between chunks
        for layer in range(network.blocks):
            if layer in network.keeps:
                kept[layer] = x
            x = network.block(ctx.layer(layer), layer, x, inputs)
            self.states.append(x)
            if (layer + 1) % per_chunk == 0 and layer + 1 < network.blocks:
                x, kept = self._carried(ctx, layer + 1, x, kept, held)
                ctx = self._next(backend)
                ctx.set_batch_size(x.dim(1))
        kept[network.blocks] = x
        end = ctx.layer(network.blocks)
        self.result = network.finish(end, x, [kept[layer] for layer in network.keeps], inputs)
        ctx.forward(self.result)

    def _next(self, backend: Backend) -> Context:
        self._contexts.append(backend.new_context(max_nodes=NODES))
        return self._contexts[-1]

    def _carried(
        self, ctx: Context, layer: int, x: Tensor, kept: dict[int, Tensor], held: dict[int, Tensor]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The state, and the kept ones, in leaves that the next chunk reads; the state's leaf serves all chunks."""
        home = self._contexts[0].layer(layer)
        # The kept states first: one of them may be the leaf that the last state is written to.
        for number, state in {**kept, STATE: x}.items():
            if number not in held or held[number].shape != state.shape:  # a block may merge positions
                held[number] = home.empty(DType.F32, *state.shape)
            if state is not held[number]:
                ctx.forward(state.copy(ctx, held[number]))
        return held[STATE], {number: held[number] for number in kept}

    def _work(self, x: Tensor) -> float:
        """About the multiplications of a block."""
        width, positions = x.shape[0], x.dim(1)
        return 12.0 * width**2 * positions + 2.0 * width * positions**2
