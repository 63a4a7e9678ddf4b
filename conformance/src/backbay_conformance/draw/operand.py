"""One operand of a call: its dtype, shape, layout and data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from backbay import Context, DType, Precision, Spec, Tensor

from ..numbers.encoding import NUMPY, Array, decode, encode, stored_shape
from .data import CentredNumbers, Fill, FillContext, Mode
from .layout import Layout


@dataclass(eq=False)
class Operand:
    """A tensor to be made: `raw` holds its stored elements in the reversed shape, `numbers` the decoded elements.

    `make` sets both; `variant` 1 makes other data of the same kind.
    """

    dtype: DType
    shape: tuple[int, ...]
    fill: Fill
    layout: Layout
    seed: int
    activated: bool = False
    raw: Array | None = None
    numbers: Array | None = None
    focus: CentredNumbers | None = None  # of a hunt

    @property
    def spec(self) -> Spec:
        return Spec(self.dtype, self.shape)

    @property
    def source(self) -> Spec:
        """The spec of the leaf that the layout begins with."""
        if not self.layout.steps:
            return self.spec
        first = self.layout.steps[0]
        return Spec(self.dtype if first.made_of is None else first.made_of, first.source)

    def make(self, mode: Mode, precision: Precision, variant: int) -> None:
        """Fill in the data."""
        rng = np.random.Generator(np.random.PCG64([self.seed, variant]))
        self.hold(self.fill(FillContext(rng, mode, precision, variant), self))

    def hold(self, raw: Array) -> None:
        self.raw = self.layout.merge_shared(raw.reshape(stored_shape(self.dtype, self.shape)))
        self.numbers = decode(self.raw, self.dtype)

    @property
    def stored(self) -> Array:
        assert self.raw is not None, "make() comes first"
        return self.raw

    @property
    def decoded(self) -> Array:
        assert self.numbers is not None, "make() comes first"
        return self.numbers

    @property
    def peak(self) -> float:
        """The largest finite magnitude, or 1 if that is larger."""
        finite = self.decoded[np.isfinite(self.decoded)]
        return max(1.0, float(np.abs(finite).max(initial=1.0)))

    def of(self, raw: Array, layout: Layout | None = None) -> Operand:
        """The operand with other data, in the shape of the data."""
        shape = raw.shape[::-1]
        if self.dtype.is_quantized:
            shape = (shape[0] // self.dtype.type_size * self.dtype.block_size, *shape[1:])
        made = replace(self, shape=shape, layout=layout or Layout())
        made.hold(raw)
        return made

    def leaf(self, ctx: Context) -> Tensor:
        return ctx.empty(self.source.dtype, *self.source.shape)

    def write(self, leaf: Tensor) -> None:
        leaf.from_bytes(self.bytes())

    def bytes(self) -> bytes:
        return self.layout.embed(self.stored).tobytes()

    def __str__(self) -> str:
        return f"{self.spec} {self.layout}"


def longer(operand: Operand, extra: int, value: float) -> Operand:
    """The operand, contiguous, with `extra` elements of one value at the end of each row."""

    def fill(making: FillContext, made: Operand) -> Array:
        rows = operand.stored
        tail = encode(np.full((*rows.shape[:-1], extra), value), operand.dtype)
        return np.concatenate([rows, tail], axis=-1)

    shape = (operand.shape[0] + extra, *operand.shape[1:])
    return Operand(operand.dtype, shape, fill, Layout(), 0, activated=operand.activated)


def elements(storage: Array, spec: Spec) -> Array:
    """The elements of a view of a contiguous array, as stored, in the reversed shape; they share its memory."""
    strides = [spec.stride(n) for n in range(len(spec.shape))]
    if spec.dtype.is_quantized:
        strides[:1] = [1]  # a row is held as bytes
    return np.ndarray(
        stored_shape(spec.dtype, spec.shape),
        NUMPY.get(spec.dtype, np.dtype(np.uint8)),
        storage.data if storage.size else b"",
        spec.offset if storage.size else 0,
        strides[::-1],
    )
