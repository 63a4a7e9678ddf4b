"""Opening in two steps: construct, then start."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


class OpenedInTwoSteps(ABCMeta):
    """The metaclass of backends: calling a class constructs the backend, then calls `start`.

    All constructors are done by then, so `start` and the hooks that it calls see a complete object.
    """

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        backend = super().__call__(*args, **keywords)
        backend.start()
        return backend
