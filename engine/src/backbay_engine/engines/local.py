"""An engine in this process: a backend, a cache and a runner."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import Backend, BackendMemory, BackendParams, ClosedError, DType
from backbay.gguf import Config
from backbay.plugin import Cancel, Entry, Progress

from ..arguments import LARGEST, LARGEST_BATCH, MOST_SEQUENCES, require_room, whole
from ..cache.contract import Cache, CacheSizes
from ..errors import LogitsError, RequestError
from ..models import load_model
from ..models.contract import Model
from ..models.keys import CONTEXT_LENGTH
from ..runner.answer import Completion, Handle, Receiver
from ..runner.generation import Generation
from ..runner.job import Job
from ..runner.loop import Runner
from ..runner.options import GenerationOptions
from ..runner.scoring import Scoring
from ..runner.slots import Slots
from ..runner.step_cache import StepCache
from ..steps.builders import text_steps, worst_steps
from ..steps.step import Step
from ..text.tokenizers import Tokenizer, tokenizer_from_gguf
from ..text.tokenizers.keys import KIND, TOKENS
from .contract import Engine, Facts

log = logging.getLogger(__name__)

Path: TypeAlias = str | os.PathLike[str]
R = TypeVar("R", bound=Receiver[Any])
DEFAULT_CONTEXT, SHORTEST = 4096, 2
NO_VOCABULARY = (None, "none", "no_vocab")


@dataclass(frozen=True)
class Sizes:
    """How large a model's sequences, steps and cache are; `load` documents the fields."""

    context: int | None
    parallel: int
    batch: int
    kv_dtype: str | DType | None


@final
class LocalEngine(Engine):
    """A model file on a backend. It is reserved when it is made, and answers once it is loaded."""

    def __init__(
        self, path: Path, backend: str | type[Backend] | None, params: BackendParams, sizes: Sizes
    ) -> None:
        parallel = whole("parallel", sizes.parallel, 1, MOST_SEQUENCES)
        batch = whole("batch", sizes.batch, 1, LARGEST_BATCH)
        self.backend = backbay.open(path, backend, params)
        try:
            context = _context(sizes.context, self.backend)
            require_room(parallel, context)
            self.model: Model = load_model(self.backend, context)
            batch = max(batch, parallel)
            self.tokenizer = _tokenizer(self.backend.config, self.model)
            self.cache: Cache | None = self.model.new_cache()
            self.step_cache = StepCache(self.model, self.cache)
            self._embedding = Lock()
            if self.cache is not None:
                batch = min(batch, parallel * context)
                dtype = _dtype(sizes.kv_dtype, self.backend)
                self.cache.open(self.backend, CacheSizes(parallel, context, batch, dtype))
            generates = self.cache is not None
            architecture = self.backend.config.architecture
            self.facts = Facts(architecture, self.model.vocabulary_size, context, batch, generates)
            self._book_host(parallel)
            # All is allocated now, so that no later step runs out of memory.
            self.step_cache.reserve(worst_steps(batch, parallel, context, decoding=generates))
            self.runner = self._runner(self.cache, parallel)
        except MemoryError as error:
            with self.backend:
                self.backend.refuse_memory(error)
        except BaseException:
            self.backend.close()
            raise

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Load the weights; if that fails, close."""
        try:
            self.backend.load(progress, cancel)
        except BaseException:
            self.close()
            raise

    def check_open(self) -> None:
        if self.backend.closed:
            raise ClosedError(f"the model is closed{self.backend.closed_because}")

    def generate(self, ids: Sequence[int], options: GenerationOptions) -> Handle[Completion]:
        return self.submit(self.generation(ids, options), Handle[Completion])

    def score(self, ids: Sequence[int]) -> Handle[NDArray[np.float32]]:
        return self.submit(Scoring(ids), Handle[NDArray[np.float32]])

    def generation(self, ids: Sequence[int], options: GenerationOptions) -> Generation:
        """The job of a request for text."""
        return Generation(ids, options, self.tokenizer, self.facts.vocabulary_size)

    def submit(self, job: Job, receiver: Callable[[Callable[[], None]], R]) -> R:
        """Queue a job for a receiver, which is made of the function that cancels the job."""
        self.check_open()
        if self.runner is None:
            raise RequestError(f"{self.facts.architecture} generates no text")
        job.handle = handle = receiver(partial(self.runner.cancel, job))
        self.runner.submit(job)
        return handle

    def embed(self, prompts: Sequence[Sequence[int]], cancel: Event | None = None) -> NDArray[np.float32]:
        ids = [list(prompt) for prompt in prompts]
        with self._embedding:
            rows = [self._embedded(step, cancel) for step in text_steps(ids, self.facts.batch)]
        return np.concatenate(rows).astype(np.float32, copy=False)

    def memory(self) -> BackendMemory:
        self.check_open()
        return self.backend.memory()

    def forget(self) -> None:
        if self.runner is not None:
            self.runner.forget()

    def close(self) -> None:
        if self.runner is not None:
            self.runner.close()
        self.step_cache.close()
        if self.cache is not None:
            self.cache.close()
        self.backend.close()

    def _book_host(self, parallel: int) -> None:
        """Book the host's share: tokenizer, cache records and masks, and the logits of a step, which are copied twice."""
        records = self.cache.host_nbytes if self.cache is not None else 0
        vocabulary = self.tokenizer.nbytes if self.tokenizer is not None else 0
        logits = 2 * 4 * parallel * self.model.vocabulary_size
        ledger = self.backend.ledger
        ledger.take(Entry(ledger.devices[0][0], "host"), records + vocabulary + logits, lambda: None)

    def _runner(self, cache: Cache | None, parallel: int) -> Runner | None:
        if cache is None:
            return None
        slots = Slots(cache, parallel)
        return Runner(self.step_cache, slots, batch=self.facts.batch, context=self.facts.context)

    def _embedded(self, step: Step, cancel: Event | None) -> NDArray[Any]:
        rows = self.step_cache.run(step, cancel)
        if not np.isfinite(rows).all():
            first = self.step_cache.first_broken(step) or "the result"
            raise LogitsError(f"the embedding is not finite; the first that is not finite is {first}")
        return rows


def _context(asked: int | None, backend: Backend) -> int:
    trained = CONTEXT_LENGTH.of(backend.config, DEFAULT_CONTEXT)
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    context = whole("context", asked, SHORTEST, LARGEST)
    if context > trained:
        log.warning("a context of %d, where the model was trained for %d", context, trained)
    return context


def _tokenizer(config: Config, model: Model) -> Tokenizer | None:
    """The tokenizer, or None if the file has no vocabulary."""
    if KIND.of(config, None) in NO_VOCABULARY:
        return None
    if len(TOKENS.of(config)) != model.vocabulary_size:
        raise TOKENS.refuse(config, f"{model.vocabulary_size} tokens, as the model has embeddings,")
    return tokenizer_from_gguf(config)


def _dtype(name: str | DType | None, backend: Backend) -> DType:
    if name is None:
        return backend.cache_config().dtypes[0]
    if isinstance(name, DType):
        return name
    try:
        return DType[str(name).upper()]
    except KeyError:
        raise RequestError(f"kv_dtype must be f32, f16, bf16, q8_0 or q4_0, got {name!r}") from None
