"""Jobs of the runner that save a conversation, and that restore one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from numpy.typing import NDArray

from ..runner.requests.job import PromptJob
from ..runner.slots import Slot
from ..steps.tokens import Token


@final
class Saving(PromptJob):
    """Lets a slot hold a prompt, and then calls a function with the slot; its result is the job's."""

    def __init__(self, prompt: Sequence[Token], save: Callable[[Slot], Any]) -> None:
        super().__init__(prompt)
        self._save, self._saved = save, None

    def wanted(self, count: int) -> Sequence[int]:
        return (count - 1,) if count == self.pending else ()

    def receive(self, rows: NDArray[Any]) -> bool:
        assert self.slot is not None  # a job with results runs
        self._saved = self._save(self.slot)
        return False

    def result(self) -> Any:
        return self._saved


@final
class Restoring(PromptJob):
    """Lets a slot hold what a function writes; no step is made for it."""

    restores = True

    def __init__(self, tokens: Sequence[Token], restore: Callable[[Slot], None]) -> None:
        super().__init__(tokens, reuse=False)
        self._restore, self._restored = restore, False

    def start(self, slot: Slot) -> None:
        self.slot, self.todo = slot, []
        self._restore(slot)
        self._restored = True

    def wanted(self, count: int) -> Sequence[int]:
        return ()

    def receive(self, rows: NDArray[Any]) -> bool:
        return False

    def result(self) -> bool | None:
        return self._restored or None
