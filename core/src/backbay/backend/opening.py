"""Opening in two steps: construct, then start."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


class OpenedInTwoSteps(ABCMeta):
    """Calling a class makes a backend, and starts it once the constructors of all its classes are done.

    So `start` and the hooks that it calls see a complete object, and a subclass need not set its fields first.
    """

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        backend = super().__call__(*args, **keywords)
        backend.start()
        return backend
