"""The adapters of a model in this process: loaded by name, found for requests, added and removed while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import RLock
from typing import Any, final

from backbay import Backend, ModelFileError
from backbay.gguf import ModelFile

from ..adapters import Adapter, open_adapter
from ..adapters.stack import AdapterStack
from ..arguments import AdapterMix, unknown_adapter
from ..encoders.contract import Modality
from ..errors import RequestError
from ..models.nn.adaptation import adaptations_of
from ..runner.traced_steps import StepCache
from .own_adapters import adapter_name_of, own_adapters

Swap = Callable[[Callable[[], None]], None]
"""Runs a function while no step runs."""


@final
class LoadedAdapters:
    """The adapters of one model. Any thread may call any method."""

    def __init__(self, backend: Backend, step_cache: StepCache) -> None:
        self._backend, self._step_cache = backend, step_cache
        self._named: dict[str, Adapter] = {}
        self._lock = RLock()

    @property
    def paths(self) -> dict[str, str]:
        """The files and folders by the adapters' names, in order."""
        return {name: os.fspath(adapter.path) for name, adapter in self._named.items()}

    def read(self, given: Mapping[str, Any]) -> None:
        """Read the first adapters, before any step: those that the model brings along, and those given."""
        own = own_adapters(self._model, given)
        for adapter in own.values():
            adapter.check(adaptations_of(self._backend).matrices)
        self._named = {**own, **{name: self._open(path) for name, path in given.items()}}

    def reserve(self) -> None:
        """Allocate the memory of the adapters, and of the largest steps with them."""
        if self._named:
            self._use(self._named)

    def resolved(self, mix: AdapterMix, modalities: Collection[Modality] = ()) -> AdapterMix:
        """The fingerprints of adapters in place of their names, in one order; RequestError if one is unknown.

        A request that names none has the adapter for the modalities of its prompt.
        """
        usual = adapter_name_of(self._model, modalities)
        if not mix and usual in self._named:
            mix = ((usual, 1.0),)
        if not mix:
            return ()
        scales = dict[str, float]()
        for name, scale in mix:
            fingerprint = self._find(name).fingerprint
            scales[fingerprint] = scales.get(fingerprint, 0.0) + scale
        return tuple(sorted((each, scale) for each, scale in scales.items() if scale))

    def has(self, fingerprint: str) -> bool:
        return any(adapter.fingerprint == fingerprint for adapter in self._named.values())

    def add(self, name: str, path: Any, swap: Swap) -> None:
        """Load one more; RequestError if the name is taken."""
        with self._lock:
            if name in self._named:
                raise RequestError(f"an adapter {name!r} is loaded; remove it first, or give another name")
            self._change({**self._named, name: self._open(path)}, swap)

    def remove(self, name: str, swap: Swap, in_use: Callable[[str], bool]) -> None:
        """Unload one; RequestError if a request runs or waits that uses it."""
        with self._lock:
            adapter = self._find(name)
            others = {other: each for other, each in self._named.items() if other != name}

            def check() -> None:
                if in_use(adapter.fingerprint):
                    raise RequestError(
                        f"requests use the adapter {name!r}; cancel them, or wait for their end"
                    )

            self._change(others, swap, check)

    def _find(self, name: str) -> Adapter:
        adapter = self._named.get(name)
        if adapter is None:
            raise unknown_adapter(name, self._named)
        return adapter

    def _open(self, path: Any) -> Adapter:
        return open_adapter(path, self._model, adaptations_of(self._backend).matrices)

    @property
    def _model(self) -> ModelFile:
        model = self._backend.model
        assert model is not None  # which the step cache runs
        return model

    def _change(
        self, named: dict[str, Adapter], swap: Swap, check: Callable[[], None] = lambda: None
    ) -> None:
        def change() -> None:
            check()
            self._use(named)

        swap(change)

    def _use(self, named: dict[str, Adapter]) -> None:
        """Let later steps have these adapters; if that fails, the earlier ones stay."""
        former = self._step_cache.stack
        distinct = list({adapter.fingerprint: adapter for adapter in named.values()}.values())
        stack = AdapterStack(self._backend, distinct) if distinct else None
        dropped = stack
        try:
            unchanged = self._step_cache.adapt(stack)
            if unchanged:
                raise _unused(distinct, unchanged)
            self._named, dropped = named, former
        except BaseException:
            self._step_cache.adapt(former)
            raise
        finally:
            if dropped is not None:
                dropped.close()
                self._step_cache.keep_within_now()


def _unused(adapters: Sequence[Adapter], names: Sequence[str]) -> ModelFileError:
    adapter = next(each for each in adapters if names[0] in each.factors)
    expected = "an adapter of this model, which changes what is multiplied with vectors of tokens"
    return ModelFileError(adapter.path, None, expected, repr(names[0]))
