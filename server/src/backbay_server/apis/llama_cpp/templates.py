"""The prompt of a conversation: its text, and the number of its tokens."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...errors import InvalidRequestError
from ...generation import prompt_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..openai.chat import conversation_asked
from ..openai.chat_requests import ChatRequest


class PromptText(Struct):
    """The text of a prompt."""

    prompt: str


class PromptTokens(Struct):
    """The number of a prompt's tokens."""

    input_tokens: int


async def apply_template(call: Call, body: ChatRequest) -> Json:
    """Show the prompt of a conversation, without an answer."""
    generator, asked = call.services.generator, conversation_asked(body)
    with await generator.lease(body.model) as lease:
        prompt = await generator.beside(prompt_of, lease.llm, asked)
        if not isinstance(prompt, list):
            raise InvalidRequestError("a prompt with pictures is no text", param="messages")
        return Json(PromptText(lease.llm.tokenizer.decode(prompt, special=True)))


async def count_tokens(call: Call, body: ChatRequest) -> Json:
    """Count the tokens of a conversation's prompt."""
    generator, asked = call.services.generator, conversation_asked(body)
    with await generator.lease(body.model) as lease:
        return Json(PromptTokens(await generator.count(lease.llm, asked)))


ENDPOINTS: Final = (
    Endpoint("POST", "/apply-template", apply_template, ChatRequest, PromptText),
    Endpoint("POST", "/v1/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokens),
    Endpoint("POST", "/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokens),
)
