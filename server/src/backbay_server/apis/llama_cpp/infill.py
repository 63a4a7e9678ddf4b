"""Filling in the middle: the text that stands between two others."""

from __future__ import annotations

from typing import Final

from ...generation import Gap, Request
from ...transport.answers import Json, Stream
from ..endpoint import Call, Endpoint
from .answers import Chunk, CompletionFields
from .completions import answered
from .requests import InfillRequest, options_of


async def infill(call: Call, body: InfillRequest) -> Json | Stream:
    """Fill the gap between two texts; needs a model with tokens for it."""
    others = [(each.filename or "tmp", each.text) for each in body.input_extra or ()]
    gap = Gap(body.input_prefix + (body.prompt or ""), body.input_suffix, others)
    return await answered(call, body, Request(body.model, [gap], options_of(body)))


ENDPOINTS: Final = (Endpoint("POST", "/infill", infill, InfillRequest, CompletionFields, Chunk),)
