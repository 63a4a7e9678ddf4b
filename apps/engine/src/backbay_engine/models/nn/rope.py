"""Rotary position embedding, by the keys and defaults of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Literal, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor
from backbay.gguf import Config, Key
from backbay.ops import Yarn

from .. import keys
from ..batch import Batch
from .shape import Shape
from .weights import Weights

Mode: TypeAlias = Literal["normal", "neox"]
ONE_AXIS, IN_TURN, TIME = (0, 0, 0, 0), (1, 1, 1, 0), (1, 0, 0, 0)  # sections
UNTURNED = 1e30  # a divisor of frequencies that leaves pairs as they are
EXACT = (DType.F32,)  # the op takes no other factors


@final
@dataclass(frozen=True)
class Factors:
    """Divisors of the frequencies, one for each pair of elements: for contexts up to the original length, and longer."""

    short: Tensor | None
    long: Tensor | None

    @classmethod
    def of(cls, weights: Weights, shape: Shape) -> Self:
        """The factors of a file: rope_freqs for all contexts, or a tensor for short and one for long contexts."""
        pairs = _dimensions(weights.config, shape) // 2
        always = weights.maybe("rope_freqs.weight", pairs, dtypes=EXACT)
        if always is not None:
            return cls(always, always)
        names = [f"rope_factors_{kind}.weight" for kind in ("short", "long")]
        if not any(name in weights for name in names):
            return cls(None, None)
        short, long = (weights.need(name, pairs, dtypes=EXACT) for name in names)
        return cls(short, long)


@final
class Rope:
    """Rotates queries and keys by their positions, and keys again when a cache moves them.

    rotated  the key of the number of rotated elements
    factors  divide the frequencies; `fit` chooses the short or the long ones
    scaled   False: the context is not extended, whatever the metadata say
    plain    True: yarn does not magnify queries and keys
    sections  pairs of elements that take each axis of M-RoPE's positions; None: positions have one axis
    in_turn  a context that holds constants: pairs take the three axes in turn, and time where an axis has all its pairs
    exact    a context that holds exact frequencies of yarn: the op, like llama.cpp, rounds the ends of yarn's ramp
             to whole pairs
    """

    def __init__(
        self,
        config: Config,
        shape: Shape,
        mode: Mode,
        *,
        base: float | None = None,
        rotated: Key[int] = keys.ROTATED,
        factors: Factors | None = None,
        scaled: bool = True,
        plain: bool = False,
        sections: Sequence[int] | None = None,
        in_turn: Context | None = None,
        exact: Context | None = None,
    ) -> None:
        self.mode: Mode = mode
        self._sections, self._late = ONE_AXIS if sections is None else sections, None
        self._by_context = factors or Factors(None, None)
        self._original = _original(config)
        self.dim = _dimensions(config, shape, rotated)
        self.base = keys.BASE.of(config, 1e4) if base is None else base
        self.scale, self.yarn = _scaling(config, plain=plain) if scaled else (1.0, None)
        if exact is not None and self.yarn is not None and self.yarn.ext_factor:
            held = exact.from_floats(_frequency_factors(self.dim, self.base, self.scale, self.yarn))
            self._by_context = Factors(held, held)
            self.yarn = self.yarn._replace(
                ext_factor=0.0, attn_factor=self.yarn.attn_factor * _growth(self.scale)
            )
            self.scale = 1.0
        if sections is not None and in_turn is not None:
            self._sections, late = IN_TURN, _late_pairs(self.dim // 2, sections)
            if late.any():
                self._late = [
                    in_turn.from_floats(np.where(untouched, UNTURNED, 1.0).astype(np.float32))
                    for untouched in (late, ~late)
                ]
        self.fit(keys.CONTEXT_LENGTH.of(config, self._original))

    def fit(self, context: int) -> None:
        """Choose the factors for sequences of up to `context` tokens: one sequence needs one set of factors."""
        factors = self._by_context
        self.factors = factors.long if context > self._original else factors.short

    def __call__(self, ctx: Context, x: Tensor, positions: Tensor) -> Tensor:
        """(head, heads, tokens), rotated by the tokens' positions."""
        if self._late is None:
            return self._turn(ctx, x, positions, self.yarn, self.factors, self._sections)
        early, late = (each if self.factors is None else each.mul(ctx, self.factors) for each in self._late)
        x = self._turn(ctx, x, positions, self.yarn, early, self._sections)
        return self._turn(ctx, x, positions, self._unmagnified(), late, TIME)

    def positions(self, batch: Batch) -> Tensor:
        """The positions of a step's tokens, as calls take them."""
        return batch.positions if self._sections == ONE_AXIS else batch.axes()

    def shift(self, ctx: Context, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotated keys, moved `offsets` positions on, on all axes. Yarn's magnification is not applied again."""
        return self._turn(ctx, keys, offsets, self._unmagnified(), self.factors)

    def _unmagnified(self) -> Yarn | None:
        """Yarn's angles alone."""
        yarn = self.yarn
        if yarn is None:
            return None
        return yarn._replace(attn_factor=1 / _growth(self.scale) if yarn.ext_factor else 1.0)

    def _turn(
        self,
        ctx: Context,
        x: Tensor,
        positions: Tensor,
        yarn: Yarn | None,
        factors: Tensor | None,
        sections: Sequence[int] = ONE_AXIS,
    ) -> Tensor:
        mode = self.mode if sections == ONE_AXIS else "multi-section"
        return x.rope(
            ctx,
            positions,
            self.dim,
            self.base,
            self.scale,
            mode,
            factors=factors,
            sections=sections,
            yarn=yarn,
        )


def _scaling(config: Config, *, plain: bool) -> tuple[float, Yarn | None]:
    """The scale of the angles, and yarn's parameters if the scale depends on the frequency."""
    kind = keys.SCALING.of(config, "linear")
    key = keys.FACTOR if keys.FACTOR.name in config else keys.OLD_FACTOR
    factor = key.of(config, 0.0) or 1.0
    if kind == "yarn" and factor < 1:
        raise key.refuse(config, "how often the context is longer: 0 or a number from 1")
    scale = 1.0 if kind == "none" else 1 / factor
    magnitude = keys.MAGNITUDE.of(config, 1.0)
    original = _original(config)
    mix = keys.YARN_MIX.of(config, 1.0) if kind == "yarn" else 0.0
    if not mix:
        return scale, Yarn(original, 0.0, magnitude) if magnitude != 1 else None
    # The op multiplies by the growth.
    whole = 1.0 if plain else keys.YARN_MAGNITUDE.of(config, _growth(scale))
    fast, slow = keys.YARN_FAST.of(config, 32.0), keys.YARN_SLOW.of(config, 1.0)
    if slow > fast:
        raise keys.YARN_SLOW.refuse(config, f"a number up to yarn_beta_fast, {fast:g},")
    return scale, Yarn(original, mix, magnitude * whole / _growth(scale), fast, slow)


def _dimensions(config: Config, shape: Shape, rotated: Key[int] = keys.ROTATED) -> int:
    """The number of a head's elements that are rotated."""
    dim = rotated.of(config, shape.head)
    if dim > shape.head or dim % 2:
        raise rotated.refuse(config, f"an even number up to {shape.head}, the length of a head,")
    return dim


def _original(config: Config) -> int:
    """The length of the context before it was extended."""
    return keys.ORIGINAL_CONTEXT.of(config, keys.CONTEXT_LENGTH.of(config, 1))


def _growth(scale: float) -> float:
    """Yarn's magnification of queries and keys."""
    return 1 + 0.1 * log(1 / scale)


def _frequency_factors(dim: int, base: float, scale: float, yarn: Yarn) -> NDArray[np.float32]:
    """The op's formula for yarn as a factor of each pair, without rounding the ends of the ramp."""
    low, high = (
        dim * log(yarn.n_ctx_orig / (beta * 2 * pi)) / (2 * log(base))
        for beta in (yarn.beta_fast, yarn.beta_slow)
    )
    low, high = max(low, 0.0), min(high, dim - 1.0)
    ramp = np.clip((np.arange(dim // 2) - low) / max(0.001, high - low), 0, 1)
    kept = yarn.ext_factor * (1 - ramp)
    return np.asarray(1 / (scale * (1 - kept) + kept), np.float32)


def _late_pairs(pairs: int, sections: Sequence[int]) -> NDArray[np.bool_]:
    """The pairs of an axis in turn that has enough pairs already: they take time."""
    turns, axes = np.divmod(np.arange(pairs), 3)
    return np.asarray((axes > 0) & (turns >= np.array(sections)[axes]))
