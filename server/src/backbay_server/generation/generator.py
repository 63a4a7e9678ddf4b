"""The generator: it leases a model, makes prompts, and submits them, all beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, final

from backbay_engine import LLM

from ..catalogue import Lease, Pool
from ..errors import InvalidRequestError
from .answer import Answer
from .bridge import Bridge
from .calls import PLAIN, form_of
from .requests import Conversation, Prompt, Request

T = TypeVar("T")
THREADS: Final = 4  # that render templates and tokenize
LARGEST_SEED: Final = 2**63


@final
class Generator:
    """Answers requests with the models of a pool. Lives in one event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._bridge = Bridge(asyncio.get_running_loop())
        self._threads = ThreadPoolExecutor(THREADS, "backbay prompt")

    @asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """The answers to a request; leaving the block ends what still runs."""
        with await self.lease(request.model) as lease:
            answer = Answer(lease.name, lease.llm, self._bridge)
            try:
                await self.beside(_submit, lease.llm, request, answer)
                yield answer
            finally:
                answer.close()

    async def lease(self, model: str | None) -> Lease:
        """A model, kept in memory until the lease is released. A server of one model needs no name."""
        if not model:
            listed = self._pool.listed()
            if len(listed) != 1:
                raise InvalidRequestError("you must provide a model parameter", param="model")
            model = listed[0].name
        return await self._pool.lease(model)

    async def beside(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _submit(llm: LLM, request: Request, answer: Answer) -> None:
    """Make the prompts, and submit a request for each choice."""
    prompts = [_prompt(llm, prompt) for prompt in request.prompts]
    answer.prompt_tokens = sum(len(prompt) if isinstance(prompt, list) else 0 for prompt in prompts)
    options = request.options.given()
    for asked, prompt in zip(request.prompts, prompts, strict=True):
        form = PLAIN
        if isinstance(asked, Conversation):
            form = form_of(llm.template.source, tools=bool(asked.tools))
        inside = form.reasons and isinstance(prompt, list) and _reasons(llm, prompt)
        for number in range(request.n):
            answer.begin(partial(_submitted, llm, prompt, _seeded(options, number)), form, inside)


def _submitted(llm: LLM, prompt: Any, options: dict[str, Any], on_step: Callable[[Any], None]) -> Any:
    return llm.submit(prompt, on_step=on_step, **options)


def _prompt(llm: LLM, prompt: Prompt) -> Any:
    if isinstance(prompt, Conversation):
        given = {**prompt.variables, **({"tools": prompt.tools} if prompt.tools else {})}
        return llm.chat_prompt(prompt.messages, **given)
    return llm.encode(prompt)


def _seeded(options: dict[str, Any], number: int) -> dict[str, Any]:
    """The options of one of several answers, which differ although the request has one seed."""
    return {**options, "seed": (options["seed"] + number) % LARGEST_SEED} if "seed" in options else options


def _reasons(llm: LLM, prompt: list[int]) -> bool:
    """Whether a prompt ends inside of the model's reasoning, which its template has begun."""
    return llm.tokenizer.decode(prompt[-8:], special=True).rstrip().endswith("<think>")
