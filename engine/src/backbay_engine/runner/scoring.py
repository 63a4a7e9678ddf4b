"""A request for the logits after every token of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import CancelledError

from ..errors import LogitsError
from ..steps.texts import text_length
from ..steps.tokens import Token
from .job import Job, RowsOfPictures


@final
class Scoring(Job):
    """Collects the logits of all tokens, except of a text for an encoder. Nothing is reused: cached tokens have none."""

    def __init__(self, prompt: Sequence[Token], pictures: RowsOfPictures | None = None) -> None:
        super().__init__(prompt, pictures, reuse=False)
        self._rows: NDArray[np.float32] | None = None
        self._text = text_length(prompt)

    def wanted(self, count: int) -> Sequence[int]:
        return range(max(self._text - self.done, 0), count)

    def receive(self, rows: NDArray[Any]) -> bool:
        peaks = rows.max(axis=1)  # a single -inf is legal: it rules a token out
        if not np.isfinite(peaks).all():
            at = int(np.isfinite(peaks).argmin())
            place = self.done - len(rows) + at
            raise LogitsError(f"the logits after token {place} of the prompt are not finite: {peaks[at]}")
        if self._rows is None:
            self._rows = np.empty((len(self.prompt) - self._text, rows.shape[1]), np.float32)
        end = self.done - self._text
        self._rows[end - len(rows) : end] = rows  # a second time, if a window had to compute tokens again
        return self.pending > 0

    def make_room(self, context: int) -> int | None:  # a prompt never outgrows the context
        return None

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.handle.fail(error)
        elif self._rows is None or self.pending:
            self.handle.fail(CancelledError("the request was cancelled"))
        else:
            self.handle.succeed(self._rows)
