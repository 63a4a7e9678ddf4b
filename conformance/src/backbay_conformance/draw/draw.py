"""Choices: each is an integer that Hypothesis draws, so that a failing call can be shrunk, saved and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from backbay import CacheConfig, DType

from .choices import SEEDS, Source, seeded
from .data import READABLE, Bits, CentredNumbers, Fill, Mode, Numbers
from .layout import (
    Layout,
    LayoutStep,
    duplicated,
    gaps,
    negated,
    permuted,
    repeated,
    sliced,
    widened,
    zeros_around,
)
from .operand import Operand

T = TypeVar("T")
MODES: tuple[Mode, ...] = ("exact", "wide", "special")
"""Integers with the same sum in any order; a wide range of magnitudes; signed zeros, infinities and NaN. They come by
turn, and none of them is the mode of a hunt, whose operands each have a focus.
"""
HUNT = len(MODES)
"""The choice of the mode of a hunt."""
LOWEST, OCTAVES = -18, 32
"""The lowest exponent of the numbers of a hunt, and how many there are."""
STEPS = 64
"""The steps of each digit behind the point. A digit spans two steps of the one before, so that no carry is needed."""

FLOATS = (DType.F32, DType.F16, DType.BF16)
SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
LISTED_FROM, ROUND = 27, 90
"""The first turn that takes listed options, which no smoke run reaches; and the turns until they come again."""
LARGE = (127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
FAR = (1 << 16) + 8
"""Bytes between rows that 16 bits do not hold."""
WHOLE = 3000
"""About the most elements of a usual operand."""
PAST = 66003
"""An extent past 2^16, the end of many grids and counters, with a rest in tiles of any size."""
ALONG = ((PAST,), (1, PAST), (1, 1, PAST), (1, 1, 1, PAST))
"""Shapes with an extent past 2^16 in each dimension."""


ROWS = (
    (4096, 3),
    (4097, 2),
    (2880, 5),
    (8192, 2),
    (5120, 1, 3),
    (3, 4099),
    (2, 40, 50),
    (5000, 2),
    (PAST,),
    (2, PAST),
    (2, 1, PAST),
    (2, 1, 1, PAST),
    (1500, 7),
    (11000, 2),
    (33000, 1),
)
"""Long rows, some with a long rest in tiles, and more rows than 2^16."""


class Draw:
    """The source of all random choices of a case. Choice 0 is always the simplest option.

    source   makes each choice; a text is the seed of a draw that needs no search, in a test
    turn     the count of this call among those of its case: a new call takes mode, dtype and some options by turn, so
             that each of them comes up
    """

    def __init__(self, source: Source | str, turn: int = 0, cache: CacheConfig = CacheConfig()) -> None:
        self._source = seeded(source) if isinstance(source, str) else source
        self.cache = cache  # the backend's
        self.note: Callable[[str], None] = lambda text: None  # called before each try of a scenario
        self.choices: list[int] = []
        self.turn = turn

    @property
    def turn(self) -> int:
        return self._turn

    @turn.setter
    def turn(self, turn: int) -> None:
        self._turn = turn
        self.mode: Mode = (*MODES, "hunt")[self.below(HUNT + 1, turn % HUNT)]
        self._float = self.by_turn(0, 1, 2, each=len(MODES))

    @property
    def exact(self) -> bool:
        return self.mode == "exact"

    # -- choices -----------------------------------------------------------------------------------------

    def below(self, n: int, by_turn: int | None = None) -> int:
        """An integer in [0, n); in a new call `by_turn`, if given."""
        self.choices.append(self._source(n, by_turn))
        return self.choices[-1]

    def by_turn(self, *options: T, each: int = 1) -> T:
        """One of the options, the next one after `each` turns: a few turns take all of them, even in a smoke run."""
        return options[self.below(len(options), self.turn // each % len(options))]

    def listed(self, *options: T) -> T | None:
        """The options one after the other, each in one turn of a default run; None in all other turns.

        A longer run takes them again in each further round, in another mode.
        """
        at = (self.turn + self.turn // ROUND) % ROUND - LISTED_FROM
        return (None, *options)[self.below(len(options) + 1, at + 1 if 0 <= at < len(options) else 0)]

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high], both included."""
        return low + self.below(high - low + 1)

    def pick(self, *options: T) -> T:
        return options[self.below(len(options))]

    def fill(self, *fills: Fill) -> Fill:
        """One of some kinds of data, which changes no shape and no layout."""
        return fills[self.below(SEEDS) % len(fills)]

    def many_digits(self, value: float) -> float:
        """An attribute: `value`, or often a number beside it with as many digits as f32 holds, which shows if rounded."""
        digits = self.below(1 << 12) if self.flag() else 0
        return float(np.float32(value * (1 + digits / (1 << 15)))) if digits else value

    def flag(self, one_in: int = 2) -> bool:
        """True about once in `one_in` times; False is the simpler choice."""
        return self.below(one_in) == one_in - 1

    def many(self, *usual: int) -> int:
        """The number of rows or experts that ids choose from: now and then more than fit in a byte."""
        return self.pick(257, 300) if self.flag(8) else self.pick(*usual)

    def side(self, most: int = 1025, least: int = 0) -> int:
        """An extent: mostly near a power of two, now and then `least`."""
        kind = self.below(24)
        if kind == 23:
            return least
        sides = [n for n in (LARGE if kind > 19 else SMALL) if least <= n <= most]
        return self.pick(*sides) if sides else max(least, min(most, 1))

    def sides(self, count: int, elements: int = 3000, least: int = 0) -> tuple[int, ...]:
        """Extents of a shape with at most about `elements` elements; any dimension may be the large one.

        Now and then all extents are equal: a kernel that confuses two dimensions then raises no error.
        """
        if count > 1 and self.flag(8):
            alike = [n for n in (2, 3, 4, 5, 8, 17, 32) if n >= least and n**count <= elements]
            return (self.pick(*alike),) * count if alike else (least,) * count
        if count > 1 and self.flag(12):
            return self._past_tiles(count, elements, least)
        order = list(range(count))
        first = self.below(count) if count else 0
        order.insert(0, order.pop(first)) if count else None
        extents, room = [0] * count, elements
        for n in order:
            extents[n] = self.side(max(1, min(1025, room)), least)
            room //= max(1, extents[n])
        return tuple(extents)

    def _past_tiles(self, count: int, elements: int, least: int) -> tuple[int, ...]:
        """Two extents that are no multiples of a kernel's tile; the others are 1."""
        tiled = [(a, b) for a in (33, 40) for b in (33, 65) if a * b <= elements] or [(5, 9)]
        extents = [max(1, least)] * count
        first = self.below(count)
        second = (first + 1 + self.below(count - 1)) % count
        extents[first], extents[second] = self.pick(*tiled)
        return tuple(extents)

    def shape(
        self, low: int = 1, high: int = 4, elements: int = WHOLE, least: int = 0, *, scalars: bool = False
    ) -> tuple[int, ...]:
        """A shape of so many dimensions; if `scalars`, now and then of none.

        Unless `elements` are fewer than usual, a default run has an extent past 2^16 in each dimension once.
        """
        if scalars and self.on_turn(5, 29):
            return ()
        long = self.listed(*ALONG) if elements >= WHOLE and low == 1 else None
        if long is not None:
            return long
        return self.sides(self.integer(low, high), elements, least)

    def on_turn(self, turn: int, every: int) -> bool:
        """True in one turn of `every`."""
        return bool(self.below(2, int(self.turn % every == turn)))

    def batch(self, shape: Sequence[int], operands: int = 1) -> dict[str, Any]:
        """The relations of an op on each element, whose operands have one shape: any dimension is a batch."""
        if not shape:
            return {}
        split = self.below(len(shape))
        return {"batch": (split,) * operands, "batch_out": split}

    def rows(self, least: int = 0) -> tuple[int, ...]:
        """A shape for an op along dimension 0; now and then with a long row, which kernels split, or a scalar."""
        wide = self.listed(*ROWS)
        if wide is not None:
            return wide
        if self.flag(4):
            return (self.pick(513, 257, 1025, 1024, 511, 2049), *self.sides(self.below(3), 5, least))
        return self.shape(least=least, scalars=True)

    def float_dtype(self, *, shift: int = 0) -> DType:
        """One of the float types by turn; `shift` selects another one, for a second operand."""
        return FLOATS[(self._float + shift) % len(FLOATS)]

    def other_float(self) -> DType:
        """A float type for a further operand: mostly the first operand's."""
        return self.float_dtype(shift=self.pick(0, 0, 1, 2))

    def quantized_dtype(self) -> DType:
        """One of the quantized types by turn."""
        return self.by_turn(*READABLE, each=len(MODES))

    # -- operands ----------------------------------------------------------------------------------------

    def operand(
        self,
        dtype: DType,
        shape: Sequence[int],
        fill: Fill | None = None,
        *,
        layout: bool = True,
        stays: bool = False,
        activated: bool = False,
    ) -> Operand:
        """A tensor of this dtype and shape, filled and laid out as drawn.

        `stays`: the tensor must be a leaf or a view of one, since it is written to or holds ids. `activated`: a
        backend may round the tensor to its activation type.
        """
        fill = fill or Numbers()
        free = isinstance(fill, (Numbers, Bits)) and not stays  # equal elements are allowed
        if not layout:
            placed = Layout()
        elif dtype.is_float and not stays and self.on_turn(9, 10):
            placed = self._made(dtype, tuple(shape), padded=free and not activated)
        else:
            placed = self.layout(dtype, tuple(shape), stays=stays, free=free)
        seed = self.below(SEEDS)
        focus = self._focus() if self.mode == "hunt" and isinstance(fill, Numbers) else None
        return Operand(dtype, tuple(shape), fill, placed, seed, activated=activated, focus=focus)

    def _focus(self) -> CentredNumbers:
        centre, spread, mixed = self._number(), 2.0 ** -self.below(24), self.flag()
        outlier = (self._fraction(), self._number()) if self.flag(4) else None
        return CentredNumbers(centre, spread, mixed, outlier)

    def _number(self) -> float:
        """A number whose sign, exponent and digits are choices, so that a hunt takes long and short steps."""
        size = 2.0 ** (LOWEST + self.below(OCTAVES)) * (1 + self._fraction())
        return -size if self.flag() else size

    def _fraction(self) -> float:
        """A number in [0, 1), from digits of shorter and shorter steps."""
        first = self.below(STEPS) / STEPS
        others = ((self.below(STEPS) - STEPS / 2) / STEPS * (2 / STEPS) ** n for n in (1, 2, 3, 4))
        return min(max(0.0, first + sum(others)), 1 - 2.0**-24)

    def floats(
        self,
        shape: Sequence[int],
        fill: Fill | None = None,
        *,
        dtype: DType | None = None,
        activated: bool = False,
    ) -> Operand:
        # not `or`: DType.F32 is 0
        return self.operand(self.float_dtype() if dtype is None else dtype, shape, fill, activated=activated)

    def layout(
        self, dtype: DType, shape: tuple[int, ...], *, stays: bool = False, free: bool = False
    ) -> Layout:
        """Contiguous, permuted, a view with an offset and gaps, a slice with steps, or the result of another op.

        If elements are `free` to be equal, now and then a dimension has a stride of 0.
        """
        kind = self.below(8)
        if len(shape) > 1 and 0 not in shape and self.flag(16) and free:
            return Layout((repeated(dtype, shape, self.integer(1, len(shape) - 1)),))
        steps: list[LayoutStep] = []
        if shape and kind in (2, 4, 5):
            steps.insert(0, self._permuted(dtype, shape))
        elif shape and kind == 6:
            steps.insert(0, self._sliced(dtype, shape))
        inner = steps[0].source if steps else shape
        if inner and kind in (3, 4, 7):
            steps.insert(0, self.gaps(dtype, inner))
        elif kind == 5 and not stays:
            steps.insert(0, duplicated(dtype, inner))
        return Layout(tuple(steps))

    def _made(self, dtype: DType, shape: tuple[int, ...], *, padded: bool) -> Layout:
        """The result of an op that an optimizer may merge into the op that reads it."""
        steps = [negated(dtype, shape)]
        if dtype is not DType.F32:
            steps.append(widened(dtype, shape))
        if padded and shape:
            before = tuple(self.below(min(n, 2)) if n else 0 for n in shape)
            behind = tuple(self.below(min(n - a, 2)) if n else 0 for n, a in zip(shape, before, strict=True))
            steps += [zeros_around(dtype, shape, before, behind)] * 2
        made = Layout((self.pick(*steps),))
        if len(shape) > 1 and self.flag(4):  # a copy of a transposed view
            turned = self._permuted(dtype, shape)
            made = Layout((turned, duplicated(dtype, shape)))
        return made

    def _permuted(self, dtype: DType, shape: tuple[int, ...]) -> LayoutStep:
        axes = list(range(len(shape)))
        # Attention permutes heads and tokens, and keeps rows whole.
        first = 1 if dtype.is_quantized or (len(shape) > 2 and self.flag(3)) else 0
        for i in range(len(axes) - 1, first, -1):
            j = self.integer(first, i)
            axes[i], axes[j] = axes[j], axes[i]
        return permuted(dtype, shape, tuple(axes))

    def gaps(self, dtype: DType, shape: tuple[int, ...]) -> LayoutStep:
        """A view with other elements before and behind it."""
        unit = [dtype.block_size, 1, 1, 1]
        before = [self.below(3) * unit[n] for n in range(len(shape))]
        behind = [self.below(3) * unit[n] for n in range(len(shape))]
        if 0 < prod(shape[1:]) <= 4 and self.flag(12):  # rows further apart than 2^16 bytes
            behind[0] += -(-FAR // dtype.row_size(unit[0])) * unit[0]
        return gaps(dtype, shape, tuple(before), tuple(behind))

    def _sliced(self, dtype: DType, shape: tuple[int, ...]) -> LayoutStep:
        dim = self.below(len(shape))
        blocked = dim == 0 and dtype.is_quantized
        low = self.below(3) * (dtype.block_size if blocked else 1)
        return sliced(dtype, shape, dim, low, 1 if blocked else self.integer(1, 3))
