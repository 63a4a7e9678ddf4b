"""Opening in two steps: construct, then start."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from .processes.forks import without_forks


class OpenedInTwoSteps(ABCMeta):
    """Calling a class makes a backend, and starts it when the constructors of all its classes are done.

    `start` and the hooks that it calls thus see a complete object, and a subclass need not set its fields first.
    """

    if not TYPE_CHECKING:  # type checkers would lose the signature of the constructor

        @without_forks()
        def __call__(cls, *args: Any, **keywords: Any) -> Any:
            backend = super().__call__(*args, **keywords)
            try:
                backend.start()
            except BaseException:
                backend.abandon()
                raise
            return backend
