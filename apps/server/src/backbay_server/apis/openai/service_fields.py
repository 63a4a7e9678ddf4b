"""Fields of OpenAI's service that have no meaning here."""

from __future__ import annotations

from typing import Annotated, Any

from .. import fields
from ..fields import ignored, refused


class OpenAIServiceFields(fields.LlamaCppFields, kw_only=True):
    """Fields of OpenAI's service: what it stores, for whom, and how it is paid for."""

    user: Annotated[str | None, ignored("nothing is kept by user")] = None
    store: Annotated[bool | None, ignored("nothing is stored")] = None
    service_tier: Annotated[str | None, ignored("there is one tier")] = None
    safety_identifier: Annotated[str | None, ignored("nothing is kept by user")] = None
    prompt_cache_key: Annotated[
        str | None, ignored("equal beginnings of prompts are found without a key")
    ] = None
    prompt_cache_retention: Annotated[str | None, ignored("the cache keeps what fits")] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, ignored("the cache keeps what fits")] = None
    moderation: Annotated[Any, refused("the server does not judge what is said")] = None
