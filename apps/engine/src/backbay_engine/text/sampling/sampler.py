"""From logits to a token, in the order of llama.cpp's default chain.

The order is logit bias, penalties, constraint, top-k, top-p, min-p, temperature, draw. So top-p and min-p see probabilities
without the temperature. At temperature 0, the largest logit after bias and penalties wins.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from backbay import OptionError

from ...errors import LogitsError
from .constraint import mask_logits
from .params import SamplingParams

_FEW: Final = 256  # candidates that suffice for nearly every draw
_BLOCK: Final = 64
_LARGEST: Final = float(np.finfo(np.float32).max) / 4  # differences stay finite
_HUGE: Final = 1e300  # in float64, so that differences stay finite


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


class Sampled(NamedTuple):
    """A chosen token. Log-probabilities are before bias, penalties and temperature."""

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@final
class Sampler:
    """Chooses the tokens of one request. A choice depends only on the seed, its position in the answer and the logits."""

    def __init__(self, params: SamplingParams, vocabulary_size: int) -> None:
        self.params, self.vocabulary_size = params, vocabulary_size
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        # The raw numbers of a bit generator are the same in all releases of NumPy and on all machines. Each position
        # of an answer takes one, so that the generator can jump to any.
        self._random = np.random.PCG64(self.seed)
        self._penalties = _Penalties(params) if params.penalizes else None
        self._bias = _bias(params.logit_bias, vocabulary_size)
        self._changes = self._penalties is not None or self._bias is not None
        self._row = np.empty(0, np.float32)

    def accept(self, ids: Iterable[int]) -> None:
        """Show the penalties tokens that were not chosen here: the prompt."""
        if self._penalties is not None:
            self._penalties.accept(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """Go on as if these tokens had been chosen here, after those chosen so far."""
        self.accept(ids)
        self._random.advance(len(ids))

    def fork(self) -> Sampler:
        """A sampler that makes the same choices as this one from now on, and leaves it as it is."""
        forked = Sampler(replace(self.params, seed=self.seed, logprobs=None), self.vocabulary_size)
        forked._random.state = self._random.state
        if forked._penalties is not None and self._penalties is not None:
            forked._penalties = self._penalties.copy()
        return forked

    def sample(self, row: NDArray[np.float32], mask: bytes | None = None) -> Sampled:
        """Choose a token by its logits, (vocabulary,), and a constraint's mask; the array is not changed."""
        if row.shape != (self.vocabulary_size,):
            raise LogitsError(f"expected logits of shape ({self.vocabulary_size},), got {row.shape}")
        changed = self._change(row, mask) if self._changes or mask is not None else row
        token = int(changed.argmax())  # the first NaN, if there is one
        if not -math.inf < changed[token] < math.inf:
            raise _unusable(row, changed)
        if self.params.temperature > 0:
            token = self._draw(changed, float(changed[token]))
        if self._penalties is not None:
            self._penalties.accept((token,))
        if self.params.logprobs is None:
            return Sampled(token)
        return with_logprobs(row, token, self.params.logprobs)

    def _change(self, row: NDArray[np.float32], mask: bytes | None) -> NDArray[np.float32]:
        if not self._row.size:
            self._row = np.empty_like(row)
        np.copyto(self._row, row)
        if self._bias is not None:
            ids, values = self._bias
            self._row[ids] += values
        if self._penalties is not None:
            self._penalties.apply(self._row)
        if mask is not None:
            mask_logits(self._row, mask)
        return self._row

    def _draw(self, row: NDArray[np.float32], largest: float) -> int:
        params = self.params
        ids = _candidates(row, params, largest)
        if params.top_p < 1:
            ids = _top_p(row, ids, params)
        logits = row[ids].astype(np.float64)
        if params.min_p > 0:
            logits = logits[logits >= largest + math.log(params.min_p)]  # a prefix, because they are sorted
        total = np.exp((logits - largest) / params.temperature).cumsum()
        point = (int(self._random.random_raw()) >> 11) * 2.0**-53 * total[-1]
        last = total.searchsorted(total[-1])  # rounding must not choose a token of probability 0
        return int(ids[min(total.searchsorted(point, side="right"), last)])


@final
class _Penalties:
    """The window of the latest tokens, and their penalties."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._window: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    def accept(self, ids: Iterable[int]) -> None:
        window, counts, size = self._window, self._counts, self._params.penalty_window
        for id in ids:
            window.append(id)
            counts[id] += 1
            if 0 <= size < len(window):
                oldest = window.popleft()
                counts[oldest] -= 1
                if not counts[oldest]:
                    del counts[oldest]

    def copy(self) -> _Penalties:
        copied = _Penalties(self._params)
        copied._window, copied._counts = self._window.copy(), self._counts.copy()
        return copied

    def apply(self, row: NDArray[np.float32]) -> None:
        params, number = self._params, len(self._counts)
        ids = np.fromiter(self._counts.keys(), np.int64, number)
        counts = np.fromiter(self._counts.values(), np.float64, number)
        logits = row[ids].astype(np.float64)  # large penalties may overflow float32
        with np.errstate(over="ignore"):
            factor = params.repetition_penalty
            repeated = np.where(logits > 0, logits / factor, logits * factor)
            subtracted = counts * params.frequency_penalty + params.presence_penalty
        changed = repeated.clip(-_HUGE, _HUGE) - subtracted.clip(-_HUGE, _HUGE)
        row[ids] = _bounded(np.where(logits == -np.inf, -np.inf, changed))


def require_known_biases(bias: Iterable[int], size: int) -> None:
    """OptionError if a bias names a token that a vocabulary of this size has not."""
    for id in bias:
        if not 0 <= id < size:
            raise OptionError(f"logit_bias names token {id}; the vocabulary's go from 0 to {size - 1}")


def _bias(given: Mapping[int, float], size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    require_known_biases(given, size)
    if not given:
        return None
    return np.array(list(given.keys()), np.int64), _bounded(np.array(list(given.values()), np.float64))


def _bounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Values as float32, clipped so that differences stay finite; -inf stays."""
    return np.where(values == -np.inf, -np.inf, values.clip(-_LARGEST, _LARGEST)).astype(np.float32)


def _candidates(row: NDArray[np.float32], params: SamplingParams, largest: float) -> NDArray[np.int64]:
    """The ids that top-k and min-p may leave, and perhaps more; sorted by falling logits if anything is cut."""
    if params.top_k > 0:
        return _best(row, params.top_k)
    if params.min_p > 0:
        return _sorted(row, np.flatnonzero(row >= largest + math.log(params.min_p) - 1e-3))
    if params.top_p < 1:
        return _best(row, _FEW)
    return np.arange(row.size)


def _best(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The ids of the largest logits, the largest first; of equal logits, the lower id first."""
    width = row.size // _BLOCK
    if count * 4 < width:
        # At least `count` logits reach the count-th largest of the columns' maxima, and few others do.
        maxima = row[: width * _BLOCK].reshape(_BLOCK, width).max(axis=0)
        maxima.partition(width - count)
        return _sorted(row, np.flatnonzero(row >= maxima[width - count]))[:count]
    if count < row.size:
        least = np.partition(row, row.size - count)[row.size - count]
        return _sorted(row, np.flatnonzero(row >= least))[:count]
    return _sorted(row, np.arange(row.size))


def _sorted(row: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return ids[np.argsort(-row[ids], kind="stable")]


def _top_p(row: NDArray[np.float32], ids: NDArray[np.int64], params: SamplingParams) -> NDArray[np.int64]:
    """The first candidates that together reach top_p of the probability that top-k leaves."""
    largest = row[ids[0]]
    if params.top_k > 0:
        whole = float(np.exp(row[ids].astype(np.float64) - largest).sum())
    else:
        whole = float(np.exp(row - largest).sum(dtype=np.float64))
    while True:
        reached = np.exp(row[ids].astype(np.float64) - largest).cumsum()
        kept = int(reached.searchsorted(params.top_p * whole)) + 1
        if kept <= len(ids) or params.top_k > 0 or params.min_p > 0 or len(ids) == row.size:
            return ids[:kept]
        ids = _best(row, len(ids) * 8)


def with_logprobs(row: NDArray[np.float32], token: int, count: int) -> Sampled:
    """A token with its log-probability, and with those of the `count` most likely tokens, by logits."""
    largest = row.max()
    whole = float(largest) + math.log(float(np.exp(row - largest).sum(dtype=np.float64)))
    best = _best(row, count).tolist() if count else []
    top = tuple(TokenLogprob(id, float(row[id]) - whole) for id in best)
    return Sampled(token, float(row[token]) - whole, top)


def _unusable(row: NDArray[np.float32], changed: NDArray[np.float32]) -> LogitsError:
    wrong = np.flatnonzero(np.isnan(row) | (row == np.inf))
    if wrong.size:
        first = int(wrong[0])
        return LogitsError(
            f"{wrong.size} of {row.size} logits are not finite, the first of token {first}: {row[first]}"
        )
    return LogitsError(
        f"no token can be chosen: all {changed.size} logits are -inf after bias, penalties and constraint"
    )
