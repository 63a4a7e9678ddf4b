"""What the tests of this plugin share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backbay import Backend, BackendParams
from backbay_ggml import Ggml


@pytest.fixture(scope="session")
def ggml() -> Iterator[Backend]:
    """A backend for tests that only open contexts on it."""
    with Ggml(None, BackendParams(num_threads=2)) as backend:
        yield backend


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A backend of the test's own, whose memory it may count."""
    with Ggml(None, BackendParams(num_threads=2)) as made:
        yield made
