"""What the tests of this plugin share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from backbay import Backend, BackendParams, backends
from backbay_ggml import Ggml

# Threads that spin between small graphs are slow beside busy neighbours; read when the library is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


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


@pytest.fixture(scope="session")
def reference() -> Iterator[Backend]:
    """What is right."""
    with backends()["cpu_ref"].load()() as made:
        yield made
