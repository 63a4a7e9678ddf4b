"""Opening models: `load` gives a model that answers, `estimate` the memory that it would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Unpack

from backbay import BackendMemory, OptionError
from backbay.internals import naming_limits, require_cancel

from .llm import LLM
from .local.opening.placement import open_port
from .local.port import LocalPort
from .port.options import BackendName, LoadFields, Path, load_options
from .port.remote import RemotePort
from .trials import fastest_backend
from .worker.worker_link import WorkerLink

RETRIES = 2


@naming_limits("loading a model")
def load(
    path: Path,
    backend: BackendName | None = None,
    *,
    num_threads: int | None = None,
    progress: Callable[[float], None] | None = None,
    cancel: Event | None = None,
    worker: bool = False,
    retries: int | None = None,
    **options: Unpack[LoadFields],
) -> LLM:
    """Open a model and load it: a GGUF file, a folder of transformers, or a name such as hf:org/name.

    backend      the name of an installed backend; without a name, the best that works: of those that rank the same, the
                 one that a trial of some seconds finds fastest for this model and `parallel`; later loads remember it
    num_threads  the backend's threads, if `params` does not have them
    worker       run the model in a process of its own: if it dies, requests for text go on in the next one, other
                 requests raise BackendUnavailableError
    retries      how often a request for text goes on in the next worker, 2 by default; 0: it raises
                 BackendUnavailableError, too
    options      the fields of LoadOptions: context, parallel, projector, draft ...
    """
    given = load_options(options, ("num_threads", "progress", "cancel", "worker", "retries"))
    if num_threads is not None:
        given = replace(given, params=replace(given.params, num_threads=num_threads))
    if not isinstance(worker, bool):
        raise OptionError(f"worker must be True or False, got {worker!r}")
    if retries is not None and not worker:
        raise OptionError("retries is for a model with worker=True")
    require_cancel(cancel)
    choice = fastest_backend(path, backend, given, cancel)
    name = backend if choice is None else choice.name
    if worker:
        link = WorkerLink(path, name, given, RETRIES if retries is None else retries)
        port: LocalPort | RemotePort = RemotePort(link, given.parallel, given.queue)
    else:
        port = open_port(path, name, given, cancel)
    port.load(progress, cancel)
    return LLM(port, choice)


def estimate(path: Path, backend: BackendName | None = None, **options: Unpack[LoadFields]) -> BackendMemory:
    """The memory that `load` with these fields of LoadOptions would take, by device and layer. Allocates nothing."""
    given = load_options(options)
    measuring = replace(given, params=replace(given.params, alloc_memory=False), queue=None, cache_dir=None)
    choice = fastest_backend(path, backend, measuring, measuring=False)
    port = open_port(path, backend if choice is None else choice.name, measuring)
    try:
        return port.memory()
    finally:
        port.close()
