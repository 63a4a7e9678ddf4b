"""Vectors of texts, by steps of whole texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay.plugin import Cancel

from ..arguments import AdapterMix, require_fitting_prompt
from ..errors import LogitsError
from ..runner.requests.job import MediaRowSource
from ..runner.step_maker import text_step_of
from ..runner.traced_steps import StepCache
from ..steps.step import Step, text_groups
from ..steps.tokens import Token
from .adapters import LoadedAdapters


@final
class TextEmbedder:
    """Gives vectors of texts, in steps of at most `batch` tokens. Callers take turns."""

    def __init__(self, step_cache: StepCache, adapters: LoadedAdapters, batch: int) -> None:
        self._step_cache, self._adapters, self._batch = step_cache, adapters, batch
        self._turn = Lock()

    def embed(
        self,
        texts: Sequence[tuple[Sequence[Token], MediaRowSource | None]],
        cancel: Cancel | None = None,
        adapter: AdapterMix = (),
    ) -> NDArray[np.float32]:
        """A row for each text, whose tokens may have rows; RequestError if one is longer than a step."""
        lengths = [len(tokens) for tokens, _ in texts]
        require_fitting_prompt("a text has {} tokens, a step takes {} (batch)", max(lengths), self._batch)
        with self._turn:
            mix, stack, rows = self._adapters.resolved(adapter), self._step_cache.stack, []
            for group in text_groups(lengths, self._batch):
                step = text_step_of(texts[group])
                if mix and stack is not None:
                    step = replace(step, adapters=stack.mixed([step.size], [mix]))
                rows.append(self._numbers(step, cancel))
        return np.concatenate(rows).astype(np.float32, copy=False)

    def between(self, task: Callable[[], None]) -> None:
        """Run a task while no step runs."""
        with self._turn:
            task()

    def _numbers(self, step: Step, cancel: Cancel | None) -> NDArray[Any]:
        rows = self._step_cache.run(step, cancel)
        if not np.isfinite(rows).all():
            first = self._step_cache.first_broken(step) or "the result"
            raise LogitsError(f"the embedding is not finite; the first that is not finite is {first}")
        return rows
