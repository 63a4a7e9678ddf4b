"""The endpoints of llama.cpp's server that are its own."""

from __future__ import annotations

from typing import Any, Final

from ..endpoint import Endpoint
from . import completions, embedding, infill, properties, templates

ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *completions.ENDPOINTS,
    *infill.ENDPOINTS,
    *embedding.ENDPOINTS,
    *templates.ENDPOINTS,
    *properties.ENDPOINTS,
)
