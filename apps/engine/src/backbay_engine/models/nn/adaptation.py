"""The matrices that adapters change, and the change of a product in a traced step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias, final
from weakref import WeakKeyDictionary

from backbay import Backend, Context, Tensor

Adapt: TypeAlias = Callable[..., Tensor]
"""(ctx, x, y, ids=None) -> y, the product of a matrix and x, plus what the adapters of the step's tokens add to it; ids
are those of experts."""


class BoundAdapters(Protocol):
    """The adapters of a step that is being traced."""

    def changed(self, ctx: Context, name: str, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """The product y of a matrix and x, with what adapters add to it."""
        ...


@final
class AdapterTargets:
    """The matrices of one model by name, and the adapters of each context that is being traced with some."""

    def __init__(self) -> None:
        self.matrices: dict[str, tuple[int, ...]] = {}  # (in, out), or (in, out, experts)
        self._bound: dict[object, BoundAdapters] = {}

    def declare(self, name: str, weight: Tensor | None) -> Adapt:
        """Note a matrix, unless its file lacks it; gives the change of its products."""
        if weight is not None:
            self.matrices[name] = weight.shape if len(weight.shape) > 1 else (*weight.shape, 1)
        return partial(self._changed, name)

    @contextmanager
    def bound(self, ctx: Context, adapters: BoundAdapters) -> Iterator[None]:
        """While this lasts, what is traced in a context has adapters."""
        self._bound[ctx.recording] = adapters
        try:
            yield
        finally:
            del self._bound[ctx.recording]

    def _changed(self, name: str, ctx: Context, x: Tensor, y: Tensor, ids: Tensor | None = None) -> Tensor:
        adapters = self._bound.get(ctx.recording)
        return y if adapters is None else adapters.changed(ctx, name, x, y, ids)


_OF_BACKENDS: WeakKeyDictionary[Backend, AdapterTargets] = WeakKeyDictionary()


def adaptations_of(backend: Backend) -> AdapterTargets:
    """Those of the model on a backend."""
    return _OF_BACKENDS.setdefault(backend, AdapterTargets())
