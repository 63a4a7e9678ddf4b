"""The table of a plugin's kernels, a function for each op, checked against the op's declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import BackbayError
from ...ops.declaration import Op

F = TypeVar("F", bound=Callable[..., Any])


class KernelTable(dict[Op[Any, Any], Callable[..., Any]]):
    """A mapping from ops to kernels, and a decorator: `kernel = KernelTable()`, then `@kernel(ops.add)`.

    A function whose parameters differ from the op's, or a second function for the same op, is an error at import.
    `skip` is the number of parameters before the op's own.
    """

    def __init__(self, *, skip: int = 0) -> None:
        super().__init__()
        self._skip = skip

    def __call__(self, op: Op[Any, Any]) -> Callable[[F], F]:
        def register(function: F) -> F:
            op.check_signature(function, skip=self._skip)
            if op in self:
                raise BackbayError(
                    f"two kernels for {op.name}: {self[op].__qualname__} and {function.__qualname__}"
                )
            self[op] = function
            return function

        return register
