"""Pictures on a backend: steps of text and rows mixed, contexts of an encoder, and the store over it."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.plugin import Cancel
from backbay_conformance.plugin import Draw, Fault, Lab, scenario

from ..encoders.contract import EncoderInputs, EncoderNetwork
from ..images.prepared_picture import Prepared
from ..media.encoder import EncoderPass
from ..media.row_store import RowStore
from ..models.batch import Batch
from ..steps.step import MediaRows, Step

Array = NDArray[Any]
WORDS, BLOCKS = 11, 3
CLOSE = 2.0**-7  # of the largest value: products may be taken in bf16


@scenario("cache", smoke=3, default=10, nightly=50)
def engine_mixed_steps(lab: Lab, draw: Draw) -> None:
    """Rows of pictures among the embeddings of text, in a traced step that other steps of its shape fill again."""
    width, size = 1 + draw.below(40), 1 + draw.below(30)
    rng = np.random.default_rng(draw.below(1 << 30))
    table = rng.standard_normal((WORDS, width)).astype(np.float32)
    room = 1 + draw.below(size)
    first, *others = [_mixed_step(rng, size, width, room) for _ in range(4)]
    with lab.fresh() as backend, backend.new_context() as ctx:
        words = ctx.from_floats(table)
        batch = Batch(ctx, first, None)
        mixed = batch.mix(ctx, words.rows(ctx, batch.tokens))
        for step in (first, *others):
            batch.fill(step)
            ctx.compute(mixed)
            expected = table[step.tokens]
            assert step.rows is not None
            expected[step.rows.tokens] = step.rows.values
            if not np.array_equal(mixed.numpy(), expected):
                raise Fault(
                    "cache", f"a step of {size} tokens with {len(step.rows.tokens)} rows is mixed wrongly"
                )


def _mixed_step(rng: np.random.Generator, size: int, width: int, room: int) -> Step:
    """A step with so many rows that they take equal room."""
    top = 1 << (room - 1).bit_length()
    count = int(rng.integers(top // 2 + 1, min(top, size) + 1)) if top // 2 < size else size
    places = np.sort(rng.choice(size, count, replace=False)).astype(np.int32)
    rows = MediaRows(rng.standard_normal((count, width)).astype(np.float32), places)
    each = np.arange(size, dtype=np.int32)
    tokens = rng.integers(0, WORDS, size).astype(np.int32)
    return Step(tokens, each, np.zeros(size, np.int32), each[-1:], rows=rows)


@final
class SmallEncoder(EncoderNetwork):
    """Blocks that add a product to the state, over weights that leaves hold; the first block's input is kept."""

    def __init__(self, backend: Backend, rng: np.random.Generator, width: int, rows: int) -> None:
        self.width, self.rows, self.blocks, self.keeps = width, rows, BLOCKS, (0, BLOCKS)
        self.arrays = [
            rng.standard_normal((rows, width)),
            *(rng.standard_normal((width, width)) for _ in range(BLOCKS)),
        ]
        self.arrays = [(array / np.sqrt(width)).astype(np.float32) for array in self.arrays]
        self.home = backend.new_context()
        self.leaves = [self.home.from_floats(array) for array in self.arrays]

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        pixels = inputs.leaf("pixels", lambda pictures: np.concatenate([each.pixels for each in pictures]))
        return pixels.scale(ctx, 0.5)

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: EncoderInputs) -> Tensor:
        return x.add(ctx, self.leaves[1 + layer].mulmat(ctx, x).tanh(ctx))

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.leaves[0].mulmat(ctx, kept[0].add(ctx, kept[1]))

    def expected(self, pixels: Array) -> Array:
        """The rows of one picture, in float64."""
        out, *blocks = (array.astype(np.float64) for array in self.arrays)
        state = first = pixels.astype(np.float64) * 0.5
        for block in blocks:
            state = state + np.tanh(state @ block.T)
        return (first + state) @ out.T


@scenario("cache", smoke=2, default=6, nightly=30)
def engine_encoder_contexts(lab: Lab, draw: Draw) -> None:
    """An encoder's contexts, kept and computed again for other pictures; the store asks them once for each."""
    rng = np.random.default_rng(draw.below(1 << 30))
    width, rows, patches = 4 + draw.below(30), 1 + draw.below(20), 1 + draw.below(20)
    pixels = rng.standard_normal((4, patches, width)).astype(np.float32)
    pictures = [Prepared(each, patches, (1, patches), (1, patches), "scenario") for each in pixels]
    with lab.fresh() as backend:
        network = SmallEncoder(backend, rng, width, rows)
        made = EncoderPass(backend, network, pictures[:1])
        made.reserve()

        def embed(given: Sequence[Any], cancel: Cancel) -> list[Array]:
            found = []
            for picture in given:
                made.fill([picture])
                for chunk in range(made.chunks):
                    made.compute(chunk, cancel)
                found.append(made.rows().copy())
            return found

        store = RowStore(embed, 3 * 4 * patches * rows, rows)
        try:
            for _ in range(6):
                _ask(store, network, [pictures[draw.below(4)] for _ in range(1 + draw.below(2))])
            held = store.counters
            if held.bytes > store.budget:
                raise Fault("cache", f"the store holds {held.bytes} bytes, its budget is {store.budget}")
        finally:
            store.close()
            made.close()
            network.home.close()


def _ask(store: RowStore, network: SmallEncoder, pictures: Sequence[Prepared]) -> None:
    """Lease pictures, and compare their rows; what is held already is not computed again."""
    answers = SimpleQueue[BaseException | None]()
    lease = store.lease(pictures, lambda lease, error: answers.put(error))
    if (error := answers.get(timeout=60)) is not None:
        raise Fault("cache", f"the store told {error!r}")
    for picture in pictures:
        got, expected = lease.of(picture.content), network.expected(picture.pixels)
        off = np.abs(got - expected).max()
        if not off <= CLOSE * max(1.0, np.abs(expected).max()) * network.width**0.5:
            raise Fault("cache", f"an encoder's rows differ by {off:.3g}")
    computed = store.counters.computed
    lease.release()
    again = store.lease(pictures[:1], lambda lease, error: None)
    if store.counters.computed != computed:
        raise Fault("cache", "the store computed again what it held")
    again.release()
