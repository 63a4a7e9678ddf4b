"""The generator: it leases a model, makes prompts, and submits them, all beside the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay_engine import LLM, Completion, ResponseFormatError, Timings

from ..catalogue import Mix, ModelLease, ModelPool
from ..errors import InvalidRequestError
from ..monitoring import Metrics
from ..pictures import PictureFetcher
from .answer import Answer, EventLoopBridge, PromptEcho
from .given_rows import require_no_rows
from .prompt_size import COUNTED, is_long, require_room, require_short
from .prompts import EnginePrompt, prepare_prompt, require_text, session_name
from .requests import SEEDS, AnswerOptions, Conversation, Prompt, Request

T = TypeVar("T")
BATCH: Final = 32  # texts to embed; between batches, a client that has left is noticed
_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)
_DIGITS: Final = 18  # of a token's id
THREADS: Final = 4  # that render templates and tokenize


class TextVectors(NamedTuple):
    """For each text a vector of length 1, (texts, width), or a score, (texts,); and the tokens of all texts."""

    model: str
    rows: NDArray[np.float32]
    tokens: int


@final
class Generator:
    """Answers requests with the models of a pool. Lives in one event loop.

    allow_rows  whether conversations may have rows
    """

    def __init__(
        self, pool: ModelPool, metrics: Metrics, fetcher: PictureFetcher, *, allow_rows: bool = False
    ) -> None:
        self._pool, self._metrics, self._fetcher = pool, metrics, fetcher
        self._allow_rows = allow_rows
        self._bridge = EventLoopBridge(asyncio.get_running_loop())
        self._threads = ThreadPoolExecutor(THREADS, "backbay prompt")
        self._long = ThreadPoolExecutor(1, "backbay long prompt")
        self._waiting = ThreadPoolExecutor(THREADS, "backbay wait")

    @asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """The answers to a request; leaving the block ends what still runs."""
        begun, failed = perf_counter(), True
        with _naming_format(request), await self.lease(request.model) as lease:
            answer = Answer(lease.name, lease.llm, self._bridge)
            try:
                ready = await self._ready(lease.llm, *request.prompts)
                scores = request.echo and request.options.logprobs is not None  # of the prompts themselves
                threads = (
                    self._waiting if scores else self._lane(*ready, [*(request.options.logit_bias or ())])
                )
                adapter = lease.mix(request.options.lora)
                await _run(threads, _submit, lease.llm, replace(request, prompts=ready), answer, adapter)
                operation = "chat" if isinstance(ready[0], Conversation) else "text_completion"
                answer.measure(partial(self._metrics.begin, lease.name, operation, begun))
                yield answer
                failed = False
            except (asyncio.CancelledError, GeneratorExit):
                failed = False  # the client has left
                raise
            finally:
                answer.close(failed=failed)

    async def lease(self, model: str | None) -> ModelLease:
        """A model, kept in memory until the lease is released. A server of one model needs no name."""
        if not model:
            listed = await asyncio.to_thread(self._pool.listed)  # it may look into folders
            if len({entry.path for entry in listed}) != 1:  # one may have several names
                raise InvalidRequestError("you must provide a model parameter", param="model")
            model = listed[0].name
        return await self._pool.lease(model)

    async def count(self, model: str | None, said: Conversation) -> int:
        """The tokens of a conversation's prompt."""
        with await self.lease(model) as lease:
            prompt = await self.prompt(lease.llm, said)
            return len(prompt if isinstance(prompt, list) else await self.waiting(lease.llm.encode, prompt))

    async def prompt(self, llm: LLM, said: Conversation) -> EnginePrompt:
        """The prompt of a conversation."""
        [ready] = await self._ready(llm, said, parts=COUNTED)
        return (await _run(self._lane(ready), prepare_prompt, llm, ready)).prompt

    async def _ready(self, llm: LLM, *prompts: Prompt, parts: int = 0) -> list[Prompt]:
        """Prompts for which there is room, with their pictures."""
        require_text(llm)
        await _run(self._lane(*prompts), partial(require_room, parts=parts), llm, *prompts)
        if not self._allow_rows:
            require_no_rows(*prompts)
        return [await self._with_pictures(llm, prompt) for prompt in prompts]

    async def _with_pictures(self, llm: LLM, prompt: Prompt) -> Prompt:
        """A prompt; a conversation with the pictures that it names by an address."""
        if not isinstance(prompt, Conversation) or "image" not in llm.modalities:
            return prompt
        return replace(prompt, messages=await self._fetcher.fetched(prompt.messages))

    async def embed(
        self, model: str | None, texts: Sequence[str | Sequence[int]], *, cut: bool = False
    ) -> TextVectors:
        """Vectors of texts. With `cut`, a text that is too long loses its end; otherwise it is an error."""
        with await self.lease(model) as lease:
            require_text(lease.llm)
            require_short(lease.llm, texts)
            encoded = await self.beside(_encoded, lease.llm, texts, cut)
            rows = await self._in_batches(partial(lease.llm.embed, adapter=lease.mix()), encoded)
            return TextVectors(lease.name, rows, sum(map(len, encoded)))

    async def rank(self, model: str | None, query: str, texts: Sequence[str]) -> TextVectors:
        """Scores of texts by how well they answer a query: the higher the better."""
        with await self.lease(model) as lease:
            require_text(lease.llm)
            require_short(lease.llm, query, texts)
            scores = await self._in_batches(partial(lease.llm.rerank, query, adapter=lease.mix()), texts)
            tokens = await self.beside(_pair_tokens, lease.llm, query, texts)
            return TextVectors(lease.name, scores, tokens)

    async def _in_batches(
        self, compute: Callable[[Sequence[T]], NDArray[np.float32]], texts: Sequence[T]
    ) -> NDArray[np.float32]:
        batches = [texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH)]
        return np.concatenate([await self.waiting(compute, batch) for batch in batches])

    async def beside(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that computes with these texts, and would hold up the event loop."""
        return await _run(self._lane(*arguments), function, *arguments)

    async def waiting(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that waits for the engine; prompts are made meanwhile."""
        return await _run(self._waiting, function, *arguments)

    def _lane(self, *prompts: Any) -> ThreadPoolExecutor:
        """The threads that make prompts: long ones one after the other, so that they keep nobody else waiting."""
        return self._long if is_long(*prompts) else self._threads

    def close(self) -> None:
        for threads in (self._threads, self._long, self._waiting):
            threads.shutdown(wait=False, cancel_futures=True)


async def _run(threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)


def _submit(llm: LLM, request: Request, answer: Answer, adapter: Mix) -> None:
    """Make the prompts, and submit a request for each choice."""
    options = {**request.options.given(), "adapter": adapter, **_biases(llm, request.options)}
    if request.options.ignore_end:
        options["logit_bias"] = {**options.get("logit_bias", {}), **dict.fromkeys(llm.end_ids, -inf)}
    wanted = request.options.response_format
    waited_for = takewhile(lambda _: not answer.closed, request.prompts)
    ready = [prepare_prompt(llm, asked, None if wanted is None else wanted.value) for asked in waited_for]
    answer.prompts = [each.prompt for each in ready]
    for asked, each in zip(request.prompts, ready, strict=not answer.closed):
        echo = _echo(llm, asked, each.prompt, request, answer, adapter) if request.echo else None
        session = session_name(asked)
        for number in range(request.n):
            own = {**options, **each.options}
            if "seed" in options:  # the answers differ although the request has one seed
                own["seed"] = (options["seed"] + number) % SEEDS
            submit = partial(llm.submit, each.prompt, session=session, **own)
            writes = request.options.max_tokens != 0
            answer.begin(submit if writes else partial(_nothing, each.prompt), each.reader(), echo)


@contextmanager
def _naming_format(request: Request) -> Iterator[None]:
    """Errors of a format with the field that gave it; without a format, those of tools, whose calls have one."""
    wanted = request.options.response_format
    try:
        yield
    except ResponseFormatError as error:
        calls = any(isinstance(each, Conversation) and each.tools.definitions for each in request.prompts)
        param = wanted.field if wanted else "tools" if calls else "response_format"
        raise InvalidRequestError(f"{param}: {error.reason}", param=param) from None


def _biases(llm: LLM, options: AnswerOptions) -> dict[str, Any]:
    """The option of the biases of tokens; those of a text are for each of its tokens."""
    if others := set(options.stop_ids) - llm.end_ids:
        told = f"stop_token_ids: {min(others)} does not end the model's answers; use stop, with a text"
        raise InvalidRequestError(told, param="stop_token_ids")
    if options.logit_bias is None:
        return {}
    require_short(llm, [*options.logit_bias])
    found: dict[int, float] = {}
    for key, bias in options.logit_bias.items():
        ids = [int(key[:_DIGITS])] if _NUMBER.fullmatch(key) else llm.tokenizer.encode(key, add_special=False)
        found |= dict.fromkeys(ids, bias)
    return {"logit_bias": found}


def _echo(
    llm: LLM, asked: Prompt, prompt: EnginePrompt, request: Request, answer: Answer, adapter: Mix
) -> PromptEcho:
    """The prompt as the beginning of its answer."""
    text = asked if isinstance(asked, str) else llm.tokenizer.decode(prompt, special=True)
    if request.options.logprobs is None:
        return PromptEcho(text, prompt, None)
    scores = llm.score_tokens(prompt, top=request.options.logprobs, adapter=adapter)
    return PromptEcho(text, prompt, list(takewhile(lambda _: not answer.closed, scores)))


def _nothing(prompt: EnginePrompt, *, on_step: Callable[[Any], None]) -> None:
    """The answer of no tokens."""
    on_step(Completion("", [], "length", timings=Timings(prompt_tokens=len(prompt))))


def _encoded(llm: LLM, texts: Sequence[str | Sequence[int]], cut: bool) -> list[list[int]]:
    if not cut:
        return [llm.encode(text) for text in texts]
    most = min(llm.context, llm.batch)
    ids = [llm.tokenizer.encode(text) if isinstance(text, str) else list(text) for text in texts]
    return [each[:most] for each in ids]


def _pair_tokens(llm: LLM, query: str, texts: Sequence[str]) -> int:
    """About the tokens of all pairs: those of the query count once for each text."""
    encode = llm.tokenizer.encode
    return len(texts) * len(encode(query)) + sum(len(encode(text, add_special=False)) for text in texts)
