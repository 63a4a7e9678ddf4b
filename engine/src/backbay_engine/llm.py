"""A model ready to answer: a file, a backend, a cache and a runner."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Event, Lock
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay import Backend, BackendMemory, BackendParams, ClosedError, DType, OptionError
from backbay.gguf import Config

from .arguments import LARGEST, LARGEST_BATCH, MOST_SEQUENCES, conversation, require_room, token_ids, whole
from .cache.contract import Cache, CacheSizes
from .errors import LogitsError, RequestError
from .models import load_model
from .models.contract import Model
from .models.keys import CONTEXT_LENGTH
from .runner.answer import Completion, Handle, TextPieces
from .runner.generation import Generation
from .runner.loop import Runner
from .runner.options import options_of
from .runner.scoring import Scoring
from .runner.slots import Slots
from .runner.step_cache import StepCache
from .steps.builders import text_steps, worst_steps
from .steps.step import Step
from .text.chat import ChatTemplate, chat_template_from_gguf
from .text.tokenizers import Tokenizer, tokenizer_from_gguf
from .text.tokenizers.keys import KIND, TOKENS

log = logging.getLogger(__name__)

Prompt: TypeAlias = str | Sequence[int]
Path: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")
DEFAULT_CONTEXT, SHORTEST = 4096, 2
NO_VOCABULARY = (None, "none", "no_vocab")


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
    progress: Callable[[float], None] | None = None,
    cancel: Event | None = None,
) -> LLM:
    """Open a model file and load it.

    context     tokens of each sequence; by default the model's context length, at most 4096; a longer context than
                the model's is logged as a warning
    parallel    sequences that run at the same time, each with a context of its own
    batch       tokens of one step; longer prompts are split
    kv_dtype    dtype of the cache: f32, f16, bf16, q8_0 or q4_0, if the backend supports it; by default the
                backend's preference
    """
    given = _params(params)
    if num_threads is not None:
        given = replace(given, num_threads=num_threads)
    llm = LLM(path, backend, given, context=context, parallel=parallel, batch=batch, kv_dtype=kv_dtype)
    try:
        llm.backend.load(progress, cancel)
    except BaseException:
        llm.close()
        raise
    return llm


def estimate(
    path: Path,
    backend: str | type[Backend] | None = None,
    *,
    context: int | None = None,
    parallel: int = 1,
    batch: int = 512,
    kv_dtype: str | DType | None = None,
    params: BackendParams | None = None,
) -> BackendMemory:
    """The memory that `load` with these arguments would take, by device and layer. Allocates nothing."""
    measuring = replace(_params(params), alloc_memory=False)
    with LLM(
        path, backend, measuring, context=context, parallel=parallel, batch=batch, kv_dtype=kv_dtype
    ) as llm:
        return llm.memory()


@final
class LLM:
    """A model file on a backend. Made by `load`; a context manager."""

    def __init__(
        self,
        path: Path,
        backend: str | type[Backend] | None,
        params: BackendParams,
        *,
        context: int | None,
        parallel: int,
        batch: int,
        kv_dtype: str | DType | None,
    ) -> None:
        parallel = whole("parallel", parallel, 1, MOST_SEQUENCES)
        batch = whole("batch", batch, 1, LARGEST_BATCH)
        self.backend = backbay.open(path, backend, params)
        try:
            self.context = _context(context, self.backend)
            require_room(parallel, self.context)
            self.model: Model = load_model(self.backend, self.context)
            self.batch = max(batch, parallel)
            self._tokenizer = _tokenizer(self.backend.config, self.model)
            self.cache: Cache | None = self.model.new_cache()
            self.step_cache = StepCache(self.model, self.cache)
            self._embedding = Lock()
            self._template: ChatTemplate | None = None
            self._reserve(parallel, kv_dtype)
            self.runner = self._runner(self.cache, parallel)
        except MemoryError as error:
            with self.backend:
                self.backend.refuse_memory(error)
        except BaseException:
            self.backend.close()
            raise
        self._close = weakref.finalize(self, _close, self.runner, self.step_cache, self.cache, self.backend)

    # -- text --------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; RequestError if the file has no vocabulary."""
        if self._tokenizer is None:
            raise RequestError("the file has no vocabulary; give token ids instead of text")
        return self._tokenizer

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Continue a prompt: a text or token ids. `submit` documents the options."""
        return _wait(self.submit(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue a prompt; gives the text piece by piece. Leaving the loop cancels the request."""
        return TextPieces(self.submit(prompt, **options), self)

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer; none if the file has no vocabulary."""
        return frozenset() if self._tokenizer is None else frozenset(self._tokenizer.end_ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: messages with a role and content, formatted by the model's chat template."""
        return self.generate(self.chat_prompt(messages), **options)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """The token ids of a conversation, ending where the model's answer begins."""
        text = self.template.render(conversation(messages), **variables)
        return self.tokenizer.encode(text, add_special=False)

    @property
    def template(self) -> ChatTemplate:
        """The chat template; RequestError if the file has none."""
        self._check_open()
        if self._template is None:
            self._template = chat_template_from_gguf(self.tokenizer)
        if self._template is None:
            raise RequestError("the file has no chat template; write the prompt out, and use generate")
        return self._template

    def submit(self, prompt: Prompt, **options: Any) -> Handle[Completion]:
        """Queue a request; requests that run at the same time share their steps.

        The options are the fields of GenerationOptions (max_tokens, stop, num_keep, reuse) and of SamplingParams
        (temperature, top_k, top_p, min_p, seed, logprobs ...).
        """
        runner = self._needs_runner()
        ids = self.encode(prompt)
        checked = options_of(options, self.context)
        if checked.stop and self._tokenizer is None:
            raise RequestError(
                f"stop {checked.stop!r}: the file has no vocabulary, so there is no text to stop in"
            )
        if self._tokenizer is not None and (never := self._tokenizer.suppressed_ids):
            sampling = checked.sampling
            bias = {**sampling.logit_bias, **dict.fromkeys(never, float("-inf"))}
            checked = replace(checked, sampling=replace(sampling, logit_bias=bias))
        job = Generation(ids, checked, self._tokenizer, self.model.vocabulary_size, runner.cancel)
        runner.submit(job)
        return job.handle

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt; RequestError if the model cannot serve it."""
        if isinstance(prompt, str) and not prompt:  # the beginning-of-sequence token would hide it
            raise RequestError("the prompt is empty")
        return self._tokens(prompt)

    # -- numbers -----------------------------------------------------------------------------------------

    def logits(self, prompt: Prompt) -> NDArray[np.float32]:
        """The logits after each token of a prompt, (tokens, vocabulary)."""
        runner = self._needs_runner()
        job = Scoring(self.encode(prompt), runner.cancel)
        runner.submit(job)
        return _wait(job.handle)

    def embed(self, texts: str | Sequence[Prompt], *, normalize: bool = True) -> NDArray[np.float32]:
        """A vector for each text, (texts, width), of length 1 unless `normalize` is False."""
        self._check_open()
        if self.cache is not None:
            raise RequestError(f"{self._architecture} generates text; embeddings come from a model like bert")
        if not isinstance(texts, Iterable):
            raise RequestError(f"texts must be a text or several, got {texts!r}")
        ids = [self._tokens(text) for text in ([texts] if isinstance(texts, str) else texts)]
        if not ids:
            raise RequestError("there is nothing to embed")
        with self._embedding:
            rows = [self._embedded(step) for step in text_steps(ids, self.batch)]
        found = np.concatenate(rows).astype(np.float32, copy=False)
        return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize else found

    def memory(self) -> BackendMemory:
        """The memory of the weights, the cache and the largest graph."""
        self._check_open()
        return self.backend.memory()

    def forget(self) -> None:
        """Wait until no request runs, then empty the cache, which keeps old prompts for reuse."""
        if self.runner is not None:
            self.runner.forget()

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel all requests and free everything. Closing again does nothing."""
        if self._template is not None:
            self._template.close()
        self._close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _architecture(self) -> str:
        return self.backend.config.architecture

    def _reserve(self, parallel: int, kv_dtype: str | DType | None) -> None:
        """Allocate the cache and the largest steps now, so that no later step runs out of memory."""
        if self.cache is not None:
            self.batch = min(self.batch, parallel * self.context)
            dtype = _dtype(kv_dtype, self.backend)
            self.cache.open(self.backend, CacheSizes(parallel, self.context, self.batch, dtype))
        decoding = self.cache is not None
        self.step_cache.reserve(worst_steps(self.batch, parallel, self.context, decoding=decoding))

    def _runner(self, cache: Cache | None, parallel: int) -> Runner | None:
        if cache is None:
            return None
        return Runner(self.step_cache, Slots(cache, parallel), batch=self.batch, context=self.context)

    def _check_open(self) -> None:
        if self.backend.closed:
            raise ClosedError(f"the model is closed{self.backend.closed_because}")

    def _needs_runner(self) -> Runner:
        self._check_open()
        if self.runner is None:
            raise RequestError(f"{self._architecture} makes embeddings, it generates no text; use embed")
        return self.runner

    def _tokens(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise RequestError("the prompt is empty")
        if len(ids) > self.context:
            raise RequestError(f"the prompt has {len(ids)} tokens, the context holds {self.context}")
        if self.cache is None and len(ids) > self.batch:  # without a cache, a text cannot be split
            raise RequestError(f"the prompt has {len(ids)} tokens, a step takes {self.batch} (batch)")
        wrong = next((token for token in ids if not 0 <= token < self.model.vocabulary_size), None)
        if wrong is not None:
            raise RequestError(f"token ids must be in [0, {self.model.vocabulary_size}), got {wrong}")
        return ids

    def _embedded(self, step: Step) -> NDArray[Any]:
        rows = self.step_cache.run(step)
        if not np.isfinite(rows).all():
            first = self.step_cache.first_broken(step) or "the result"
            raise LogitsError(f"the embedding is not finite; the first that is not finite is {first}")
        return rows


def _params(given: BackendParams | None) -> BackendParams:
    if given is not None and not isinstance(given, BackendParams):
        raise OptionError(f"params must be BackendParams, got {given!r}")
    return given or BackendParams()


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


def _wait(handle: Handle[T]) -> T:
    """The result; an interruption of the waiting, such as Ctrl+C, cancels the request."""
    try:
        return handle.result()
    finally:
        handle.cancel()


def _close(runner: Runner | None, step_cache: StepCache, cache: Cache | None, backend: Backend) -> None:
    if runner is not None:
        runner.close()
    step_cache.close()
    if cache is not None:
        cache.close()
    backend.close()
