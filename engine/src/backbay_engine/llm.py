"""A model ready to answer: its text side, over an engine that runs its steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, BackendMemory, BackendParams, DType, OptionError
from backbay.plugin import naming_limits

from .arguments import conversation, token_ids
from .cache.contract import Cache
from .engines.contract import Engine
from .engines.local import LocalEngine, Path, Sizes
from .errors import RequestError
from .models.contract import Model
from .runner.answer import Completion, Handle, TextPieces
from .runner.loop import Runner
from .runner.options import options_of
from .runner.step_cache import StepCache
from .text.chat import ChatTemplate, chat_template_from_gguf
from .text.tokenizers import Tokenizer
from .worker import WorkerEngine

Prompt: TypeAlias = str | Sequence[int]
T = TypeVar("T")


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
    progress: Callable[[float], None] | None = None,
    cancel: Event | None = None,
    worker: bool = False,
) -> LLM:
    """Open a model file and load it.

    context     tokens of each sequence; by default the model's context length, at most 4096; a longer context than
                the model's is logged as a warning
    parallel    sequences that run at the same time, each with a context of its own
    batch       tokens of one step; longer prompts are split
    kv_dtype    dtype of the cache: f32, f16, bf16, q8_0 or q4_0, if the backend supports it; by default the
                backend's preference
    worker      run the model in a process of its own: if the process dies, the running requests raise
                BackendUnavailableError, and the next request starts another
    """
    given = _params(params)
    if num_threads is not None:
        given = replace(given, num_threads=num_threads)
    if not isinstance(worker, bool):
        raise OptionError(f"worker must be True or False, got {worker!r}")
    engine = (WorkerEngine if worker else LocalEngine)(
        path, backend, given, Sizes(context, parallel, batch, kv_dtype)
    )
    engine.load(progress, cancel)
    return LLM(engine)


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
    engine = LocalEngine(path, backend, measuring, Sizes(context, parallel, batch, kv_dtype))
    try:
        return engine.memory()
    finally:
        engine.close()


@final
class LLM:
    """A model file on a backend. Made by `load`; a context manager."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._template: ChatTemplate | None = None
        self._close = weakref.finalize(self, engine.close)

    @property
    def context(self) -> int:
        """Tokens of each sequence."""
        return self._engine.facts.context

    @property
    def batch(self) -> int:
        """Tokens of one step."""
        return self._engine.facts.batch

    @property
    def vocabulary_size(self) -> int:
        return self._engine.facts.vocabulary_size

    # -- text --------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; RequestError if the file has no vocabulary."""
        if self._engine.tokenizer is None:
            raise RequestError("the file has no vocabulary; give token ids instead of text")
        return self._engine.tokenizer

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Continue a prompt: a text or token ids. `submit` documents the options."""
        return _wait(self.submit(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue a prompt; gives the text piece by piece. Leaving the loop cancels the request."""
        return TextPieces(self.submit(prompt, **options), self)

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer; none if the file has no vocabulary."""
        tokenizer = self._engine.tokenizer
        return frozenset() if tokenizer is None else frozenset(tokenizer.end_ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: messages with a role and content, formatted by the model's chat template."""
        return self.generate(self.chat_prompt(messages), **options)

    @naming_limits("a chat template")
    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """The token ids of a conversation, ending where the model's answer begins."""
        text = self.template.render(conversation(messages), **variables)
        return self.tokenizer.encode(text, add_special=False)

    @property
    def template(self) -> ChatTemplate:
        """The chat template; RequestError if the file has none."""
        self._engine.check_open()
        if self._template is None:
            self._template = chat_template_from_gguf(self.tokenizer)
        if self._template is None:
            raise RequestError("the file has no chat template; write the prompt out, and use generate")
        return self._template

    @naming_limits("a request")
    def submit(self, prompt: Prompt, **options: Any) -> Handle[Completion]:
        """Queue a request; requests that run at the same time share their steps.

        The options are the fields of GenerationOptions (max_tokens, stop, num_keep, reuse) and of SamplingParams
        (temperature, top_k, top_p, min_p, seed, logprobs ...).
        """
        self._check_generates()
        ids = self.encode(prompt)
        checked = options_of(options, self.context)
        tokenizer = self._engine.tokenizer
        if checked.stop and tokenizer is None:
            raise RequestError(
                f"stop {checked.stop!r}: the file has no vocabulary, so there is no text to stop in"
            )
        if tokenizer is not None and (never := tokenizer.suppressed_ids):
            sampling = checked.sampling
            bias = {**sampling.logit_bias, **dict.fromkeys(never, float("-inf"))}
            checked = replace(checked, sampling=replace(sampling, logit_bias=bias))
        return self._engine.generate(ids, checked)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt; RequestError if the model cannot serve it."""
        if isinstance(prompt, str) and not prompt:  # the beginning-of-sequence token would hide it
            raise RequestError("the prompt is empty")
        return self._tokens(prompt)

    # -- numbers -----------------------------------------------------------------------------------------

    @naming_limits("a request")
    def logits(self, prompt: Prompt) -> NDArray[np.float32]:
        """The logits after each token of a prompt, (tokens, vocabulary)."""
        self._check_generates()
        return _wait(self._engine.score(self.encode(prompt)))

    @naming_limits("a request")
    def embed(self, texts: str | Sequence[Prompt], *, normalize: bool = True) -> NDArray[np.float32]:
        """A vector for each text, (texts, width), of length 1 unless `normalize` is False."""
        self._engine.check_open()
        if self._engine.facts.generates:
            architecture = self._engine.facts.architecture
            raise RequestError(f"{architecture} generates text; embeddings come from a model like bert")
        if not isinstance(texts, Iterable):
            raise RequestError(f"texts must be a text or several, got {texts!r}")
        ids = [self._tokens(text) for text in ([texts] if isinstance(texts, str) else texts)]
        if not ids:
            raise RequestError("there is nothing to embed")
        found = self._engine.embed(ids)
        return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize else found

    def memory(self) -> BackendMemory:
        """The memory of the weights, the cache, the largest graph, and the host's share."""
        return self._engine.memory()

    def forget(self) -> None:
        """Wait until no request runs, then empty the cache, which keeps old prompts for reuse."""
        self._engine.forget()

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel all requests and free everything. Closing again does nothing."""
        if self._template is not None:
            self._template.close()
        self._close()

    def __enter__(self) -> Self:
        self._engine.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- where it runs -----------------------------------------------------------------------------------

    @property
    def worker_pid(self) -> int | None:
        """The id of the worker's process; None if none runs now, or if the model runs in this process."""
        return self._engine.pid if isinstance(self._engine, WorkerEngine) else None

    @property
    def backend(self) -> Backend:
        """The backend. This and what follows are only to be had if the model runs in this process."""
        return self._local("backend").backend

    @property
    def model(self) -> Model:
        return self._local("model").model

    @property
    def cache(self) -> Cache | None:
        return self._local("cache").cache

    @property
    def step_cache(self) -> StepCache:
        return self._local("step_cache").step_cache

    @property
    def runner(self) -> Runner | None:
        return self._local("runner").runner

    def _local(self, wanted: str) -> LocalEngine:
        if not isinstance(self._engine, LocalEngine):
            raise RequestError(f"{wanted} is in the model's worker; load the model without worker=True")
        return self._engine

    # -- inside ------------------------------------------------------------------------------------------

    def _check_generates(self) -> None:
        self._engine.check_open()
        facts = self._engine.facts
        if not facts.generates:
            raise RequestError(f"{facts.architecture} makes embeddings, it generates no text; use embed")

    def _tokens(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise RequestError("the prompt is empty")
        if len(ids) > self.context:
            raise RequestError(f"the prompt has {len(ids)} tokens, the context holds {self.context}")
        if (
            not self._engine.facts.generates and len(ids) > self.batch
        ):  # without a cache, a text cannot be split
            raise RequestError(f"the prompt has {len(ids)} tokens, a step takes {self.batch} (batch)")
        wrong = next((token for token in ids if not 0 <= token < self.vocabulary_size), None)
        if wrong is not None:
            raise RequestError(f"token ids must be in [0, {self.vocabulary_size}), got {wrong}")
        return ids


def _params(given: BackendParams | None) -> BackendParams:
    if given is not None and not isinstance(given, BackendParams):
        raise OptionError(f"params must be BackendParams, got {given!r}")
    return given or BackendParams()


def _wait(handle: Handle[T]) -> T:
    """The result; an interruption of the waiting, such as Ctrl+C, cancels the request."""
    try:
        return handle.result()
    finally:
        handle.cancel()
