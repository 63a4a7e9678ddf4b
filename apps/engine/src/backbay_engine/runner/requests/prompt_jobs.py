"""Jobs about a prompt, with one result: the logits after its tokens, their log-probabilities, what a slot holds of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import CancelledError

from ...errors import LogitsError, RequestError
from ...steps.tokens import Token, encoder_length, ids_of
from ...text.sampling.sampler import Sampled, with_logprobs
from ..slots import Slot
from .answer import TokenStep
from .job import Job, MediaRowSource

LOGITS = 1 << 25  # bytes of logits that one step of TokenScoreJob may have


class PromptJob(Job):
    """A job that samples nothing, and has one result."""

    @abstractmethod
    def result(self) -> Any:
        """The result; None until it is there."""

    @property
    def over(self) -> bool:
        return self.result() is not None

    def finish(self, error: BaseException | None = None) -> None:
        if error is None and self.over:
            self.handle.succeed(self.result())
        else:
            self.handle.fail(error or CancelledError("the request was cancelled"))


@final
class LogitsJob(PromptJob):
    """Collects the logits of all tokens, except of a text for an encoder. Nothing is reused: cached tokens have none."""

    def __init__(self, prompt: Sequence[Token], pictures: MediaRowSource | None = None) -> None:
        super().__init__(prompt, pictures, reuse=False)
        self._rows: NDArray[np.float32] | None = None
        self._text = encoder_length(prompt)

    def wanted(self, count: int) -> Sequence[int]:
        return range(max(self._text - self.done, 0), count)

    def receive(self, rows: NDArray[Any]) -> int:
        _require_finite(rows, self.done - len(rows))
        if self._rows is None:
            self._rows = np.empty((len(self.prompt) - self._text, rows.shape[1]), np.float32)
        end = self.done - self._text
        self._rows[end - len(rows) : end] = rows  # a second time, if a window had to compute tokens again
        return 0

    def result(self) -> NDArray[np.float32] | None:
        return None if self.pending else self._rows


@final
class TokenScoreJob(PromptJob):
    """Tells the log-probability of each token of a prompt, with the most likely ones in its place.

    A step takes so few tokens that the logits of a long prompt are never there at once.
    """

    def __init__(self, prompt: Sequence[Token], *, top: int, vocabulary_size: int) -> None:
        super().__init__(prompt, reuse=False)
        if encoder_length(prompt):
            raise RequestError("the model encodes its prompt, whose tokens have no probabilities")
        self._top, self._most = top, max(1, LOGITS // (4 * vocabulary_size))
        self._told = 0  # tokens

    @property
    def pending(self) -> int:
        return min(len(self.todo), self._most)

    def wanted(self, count: int) -> Sequence[int]:
        return range(count)

    def receive(self, rows: NDArray[Any]) -> int:
        first = self.done - len(rows)
        _require_finite(rows, first)
        ids = ids_of(self.prompt[self._told : self.done + 1])
        found = [] if self._told else [Sampled(ids[0])]
        begin = self._told + len(found)  # again, if a window had to compute tokens again
        for token, row in zip(ids[len(found) :], rows[begin - first - 1 :], strict=False):
            found.append(with_logprobs(row, token, self._top))
        if found:
            self._told += len(found)
            self.handle.emit(TokenStep("", tuple(each.token for each in found), tuple(found)))
        return 0

    def result(self) -> int | None:
        return None if self._told < len(self.prompt) else self._told


@final
class SlotCallJob(PromptJob):
    """Calls a function with a slot, once the slot holds the prompt; if not `computed`, the function brings what it holds."""

    def __init__(
        self,
        prompt: Sequence[Token],
        work: Callable[[Slot], Any],
        pictures: MediaRowSource | None = None,
        *,
        computed: bool,
    ) -> None:
        super().__init__(prompt, pictures, reuse=computed)
        self._work, self._computed = work, computed
        self._results: list[Any] = []

    @property
    def over(self) -> bool:
        return bool(self._results)

    def start(self, slot: Slot) -> None:
        super().start(slot)
        if not self._computed:
            self.todo = []
            self._results.append(self._work(slot))

    def wanted(self, count: int) -> Sequence[int]:
        return (count - 1,) if count == self.pending else ()

    def receive(self, rows: NDArray[Any]) -> int:
        self._results.append(self._work(self.slot))
        return 0

    def result(self) -> Any:
        return self._results[-1]


def _require_finite(rows: NDArray[Any], first: int) -> None:
    """LogitsError if logits have no finite peak; a single -inf is legal: it rules a token out."""
    peaks = rows.max(axis=1)
    if not np.isfinite(peaks).all():
        at = int(np.isfinite(peaks).argmin())
        raise LogitsError(f"the logits after token {first + at} of the prompt are not finite: {peaks[at]}")
