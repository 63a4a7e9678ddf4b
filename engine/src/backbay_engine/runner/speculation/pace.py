"""The pace of a model: how long steps of each size take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, final

KEPT: Final = 5  # the fastest of the latest steps of a size counts: others share the processor
STALE: Final = 256  # steps after which a time counts less, as the history and the machine's load have changed
FADED: Final = 0.8  # how much less, for as many further steps as FADING says
FADING: Final = 64
BOLD: Final = 0.9  # of what is expected of a size by others: so that it is tried
HOPED: Final = 0.05  # of a step: what a further token costs at least, where it is not measured
FIRST: Final = 4  # tokens of the first try: many kernels take as many columns at once


@dataclass(eq=False)
class _Times:
    latest: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEPT))
    at: int = 0


@final
class Pace:
    """The seconds of steps by their number of tokens, as measured lately.

    A time that was measured long ago counts as shorter than it was, so that it is measured again.
    """

    def __init__(self) -> None:
        self._times: dict[int, _Times] = {}
        self._steps = 0

    def note(self, tokens: int, seconds: float) -> None:
        """Take note of a step."""
        self.age()
        times = self._times.setdefault(tokens, _Times())
        if self._steps - times.at > STALE:
            times.latest.clear()
        times.latest.append(seconds)
        times.at = self._steps

    def age(self) -> None:
        """Let a step pass that is not measured."""
        self._steps += 1

    def known(self, tokens: int) -> float | None:
        """The seconds of steps of this size; None if there are too few of them. A first one may have been traced."""
        times = self._times.get(tokens)
        if times is None or len(times.latest) < 2:
            return None
        return float(min(times.latest) * FADED ** (max(0, self._steps - times.at - STALE) // FADING))

    def seconds(self, tokens: int, base: int) -> float | None:
        """The seconds of steps of this size, if need be expected of others; None if they should not be tried yet.

        The steps of `base` tokens are known. More tokens never count as faster: the machine was faster then.
        """
        known, least = self.known(tokens), self.known(base)
        if least is None:
            return known
        if known is not None:
            return max(known, least)
        measured = [(abs(n - tokens), n) for n in self._times if n > base and self.known(n) is not None]
        if not measured:
            return least * (1 + HOPED * (tokens - base)) if tokens <= max(FIRST, 2 * base) else None
        nearest = min(measured)[1]
        each = ((self.known(nearest) or least) - least) / (nearest - base)
        return BOLD * (least + max(each, HOPED * least) * (tokens - base))
