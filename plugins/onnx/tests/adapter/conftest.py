"""Each test makes its own sessions, and finds its own providers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backbay_onnx.adapter.provider import find_provider
from backbay_onnx.adapter.provider_graph import try_models


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    try_models.cache_clear()
    find_provider.cache_clear()
