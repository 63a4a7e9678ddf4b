"""Opening models: `load` gives a model that answers, `estimate` the memory that it would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event

from backbay import Backend, BackendMemory, BackendParams, DType, OptionError
from backbay.plugin import naming_limits, require_cancel

from .arguments import require_params
from .llm import LLM
from .port.guessing import GuessOptions
from .port.keeping import CACHE_BYTES, KeepOptions
from .port.local import LocalPort
from .port.sight import STORE_BYTES, SightOptions
from .port.sizes import Path, Sizes
from .trials import fastest
from .worker import WorkerPort

RETRIES = 2


@naming_limits("loading a model")
def load(
    path: Path,
    backend: str | type[Backend] | None = None,
    *,
    context: int | None = None,
    parallel: int = 1,
    batch: int = 512,
    kv_dtype: str | DType | None = None,
    params: BackendParams | None = None,
    num_threads: int | None = None,
    projector: Path | None = None,
    encoder_backend: str | type[Backend] | None = None,
    encoder_params: BackendParams | None = None,
    image_tokens: int | None = None,
    store_bytes: int = STORE_BYTES,
    speculate: str | None = None,
    draft: Path | None = None,
    draft_backend: str | type[Backend] | None = None,
    draft_params: BackendParams | None = None,
    progress: Callable[[float], None] | None = None,
    cancel: Event | None = None,
    worker: bool = False,
    queue: int | None = None,
    retries: int | None = None,
    cache_dir: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> LLM:
    """Open a model and load it: a GGUF file, a folder of transformers, or a name such as hf:org/name.

    backend     the name of an installed backend; without a name, the best that works: of those that rank the same, the
                one that a trial of some seconds finds fastest for this model and `parallel`; later loads remember it
    context     tokens of each sequence; by default the model's context length, at most 4096; a longer context than
                the model's is logged as a warning
    parallel    sequences that run at the same time, each with a context of its own
    batch       tokens of one step; longer prompts are split
    kv_dtype    dtype of the cache: f32, f16, bf16, q8_0 or q4_0, if the backend supports it; by default the
                backend's preference
    worker      run the model in a process of its own: if it dies, requests for text go on in the next one, other
                requests raise BackendUnavailableError
    retries     how often a request for text goes on in the next worker, 2 by default; 0: it raises
                BackendUnavailableError, too
    cache_dir   a folder for the cache of prompts' beginnings, which later processes find again
    cache_bytes bytes of this folder; what was not used for the longest time goes first
    queue       requests that may wait while `parallel` run: one more raises QueueFullError; by default any number

    Several tokens a step, where that is faster, without another answer; give one of:

    speculate        "ngram": guess what followed the last tokens where they stood before, in the prompt or the answer
    draft            the file of a small model of the same vocabulary, which guesses
    draft_backend    its backend; by default the model's
    draft_params     its parameters; by default `params`, and on another backend its threads

    A model that sees pictures has an encoder in its file, or in a projector's file:

    projector        the projector's file (mmproj)
    encoder_backend  the encoder's backend; by default the model's
    encoder_params   the encoder's parameters; by default `params`
    image_tokens     most tokens of a picture: larger pictures are made smaller, if the model's family can
    store_bytes      bytes of host memory for the rows of pictures that were encoded
    """
    given = require_params("params", params) or BackendParams()
    sight = SightOptions(projector, encoder_backend, encoder_params, image_tokens, store_bytes)
    guess = GuessOptions(speculate, draft, draft_backend, draft_params)
    if num_threads is not None:
        given = replace(given, num_threads=num_threads)
    if not isinstance(worker, bool):
        raise OptionError(f"worker must be True or False, got {worker!r}")
    if retries is not None and not worker:
        raise OptionError("retries is for a model with worker=True")
    tries = RETRIES if retries is None else retries
    made = partial(WorkerPort, retries=tries) if worker else LocalPort
    keep = KeepOptions(cache_dir, cache_bytes)
    sizes = Sizes(context, parallel, batch, kv_dtype, queue)
    require_cancel(cancel)
    choice = fastest(path, backend, given, sizes, cancel)
    port = made(path, backend if choice is None else choice.name, given, sizes, sight, guess, keep)
    port.load(progress, cancel)
    return LLM(port, choice)


def estimate(
    path: Path,
    backend: str | type[Backend] | None = None,
    *,
    context: int | None = None,
    parallel: int = 1,
    batch: int = 512,
    kv_dtype: str | DType | None = None,
    params: BackendParams | None = None,
    projector: Path | None = None,
    encoder_backend: str | type[Backend] | None = None,
    encoder_params: BackendParams | None = None,
    image_tokens: int | None = None,
    store_bytes: int = STORE_BYTES,
    speculate: str | None = None,
    draft: Path | None = None,
    draft_backend: str | type[Backend] | None = None,
    draft_params: BackendParams | None = None,
) -> BackendMemory:
    """The memory that `load` with these arguments would take, by device and layer. Allocates nothing."""
    measuring = replace(require_params("params", params) or BackendParams(), alloc_memory=False)
    sight = SightOptions(projector, encoder_backend, encoder_params, image_tokens, store_bytes)
    guess = GuessOptions(speculate, draft, draft_backend, draft_params)
    sizes = Sizes(context, parallel, batch, kv_dtype)
    choice = fastest(path, backend, measuring, sizes, measuring=False)
    name = backend if choice is None else choice.name
    port = LocalPort(path, name, measuring, sizes, sight, guess)
    try:
        return port.memory()
    finally:
        port.close()
