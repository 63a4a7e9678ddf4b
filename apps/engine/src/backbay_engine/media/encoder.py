"""The encoder: a model of its own, whose passes are kept and computed again for pieces of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, islice
from threading import RLock
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import Backend, BackendMemory, BackendParams, Context, DType, Tensor
from backbay.plugin import Cancel, Progress

from ..encoders.contract import EncoderFamily, EncoderInputs, EncoderNetwork, Prepared
from ..steps.context_cache import ContextCache

Rows: TypeAlias = NDArray[np.float32]
Turn: TypeAlias = Callable[[], AbstractContextManager[Any]]
KEPT = 8  # passes
WORK = 20e9  # multiplications of a chunk; a chunk has one block at least
NODES = 1 << 15  # of a chunk; attention over many positions has many tiles
STATE = -1  # among the leaves of kept states, which have the numbers of blocks


@final
class MediaEncoder:
    """An encoder on a backend of its own. It is reserved when it is made, and encodes once it is loaded.

    Pieces of one shape are encoded together, up to as many positions as the largest has: pictures, or parts of sounds.
    """

    def __init__(
        self,
        family: EncoderFamily[Any],
        backend: str | type[Backend] | None = None,
        params: BackendParams | None = None,
    ) -> None:
        self.family = family
        self._lock = RLock()  # the garbage collector may call close in the thread that encodes
        self.backend = backbay.open(family.file, backend, params)
        self._passes: ContextCache[EncoderPass] = ContextCache(self.backend, KEPT)
        try:
            self.network = family.network(self.backend)
            self._reserve()
        except MemoryError as error:
            with self.backend:
                self.backend.refuse_memory(error)
        except BaseException:
            self.backend.close()
            raise

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Load the weights."""
        self.backend.load(progress, cancel)

    def embed(
        self, prepared: Sequence[Prepared], cancel: Cancel | None = None, turn: Turn = nullcontext
    ) -> list[Rows]:
        """The rows of each picture or sound, (rows, width). Any thread may call; each compute runs inside `with turn()`."""
        for each in prepared:
            self.family.check_prepared(each)
        pieces_of = [self.family.pieces(each) for each in prepared]
        pieces = list(chain.from_iterable(pieces_of))
        found: dict[int, Rows] = {}
        with self._lock:
            for group in self._groups(pieces):
                rows = self._passes.run(partial(self._encoded, [pieces[n] for n in group], cancel, turn))
                found.update(zip(group, np.split(rows, len(group)), strict=True))
        rows_of = iter(found[n] for n in range(len(pieces)))
        return [
            self.family.joined(each, list(islice(rows_of, len(own))))
            for each, own in zip(prepared, pieces_of, strict=True)
        ]

    def memory(self) -> BackendMemory:
        """The memory of the weights, and of the largest piece's graph."""
        return self.backend.memory()

    def close(self) -> None:
        """Free everything, after a running compute. Closing again does nothing."""
        with self._lock:
            self._passes.close()
            self.backend.close()

    def _reserve(self) -> None:
        """Allocate the memory of the largest piece: all others stay within it, and within that of the smallest."""
        self._pass(self.family.pieces(self.family.smallest())[:1]).reserve()
        most = self.family.largest()
        pieces = self.family.pieces(most)[:1]
        self._most = self.family.cost(pieces[0])
        largest = self._pass(pieces)
        largest.reserve()
        rows = 4 * most.tokens * self.family.width
        self._passes.reserve(largest.nodes, most.nbytes + rows)

    def _groups(self, pieces: Sequence[Any]) -> Iterator[list[int]]:
        """Numbers of pieces that are encoded together."""
        by_key: dict[Hashable, list[int]] = {}
        for n, piece in enumerate(pieces):
            by_key.setdefault(self.family.key(piece), []).append(n)
        for numbers in by_key.values():
            most = max(1, self._most // self.family.cost(pieces[numbers[0]]))
            yield from (numbers[first : first + most] for first in range(0, len(numbers), most))

    def _encoded(self, pieces: Sequence[Any], cancel: Cancel | None, turn: Turn) -> Rows:
        """The rows of pieces of one shape."""
        with turn():
            traced = self._pass(pieces)
        for chunk in range(traced.chunks):
            with turn():
                traced.compute(chunk, cancel)
        self._passes.keep_within()
        return traced.rows()

    def _pass(self, pieces: Sequence[Any]) -> EncoderPass:
        key = self.family.key(pieces[0]), len(pieces)
        traced = self._passes.get(key)
        if traced is None:
            return self._passes.add(key, partial(EncoderPass, self.backend, self.network, pieces))
        traced.fill(pieces)
        return traced


@final
class EncoderPass:
    """A pass over pieces of one shape, cut into chunks between which other work gets its turn: contexts computed one after the other. Leaves of the first carry the state from chunk to chunk.

    A whole pass is one chunk, to be looked into.

        states    the states of a whole pass: after the start, and after each block
        result    the rows of all pieces, (width, rows)
    """

    def __init__(
        self, backend: Backend, network: EncoderNetwork, pieces: Sequence[Any], *, whole: bool = False
    ) -> None:
        self.network, self._whole = network, whole
        self._contexts: list[Context] = []
        self.states: list[Tensor] = []
        try:
            self._trace(backend, pieces)
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

    def fill(self, pieces: Sequence[Any]) -> None:
        """Fill the leaves with as many other pieces of the same shape."""
        self.inputs.fill(pieces)

    def reserve(self) -> None:
        for ctx in self._contexts:
            ctx.reserve()

    def compute(self, chunk: int, cancel: Cancel | None = None) -> None:
        """Compute one chunk; all chunks before it must have been computed with the same pieces."""
        ctx = self._contexts[chunk]
        ctx.compute(*([self.result] if chunk == self.chunks - 1 else []), cancel=cancel)

    def rows(self) -> NDArray[np.float32]:
        """(rows, width) of all pieces."""
        return self.result.numpy().astype(np.float32, copy=False)

    def close(self) -> None:
        while self._contexts:
            self._contexts.pop().close()

    def _trace(self, backend: Backend, pieces: Sequence[Any]) -> None:
        network = self.network
        ctx = self._next(backend)
        self.inputs = inputs = EncoderInputs(ctx, pieces)
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
