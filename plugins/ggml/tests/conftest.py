"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from backbay import Backend, BackendParams
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_native import NativeCode

# Spinning threads are slow beside busy neighbours. libgomp reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A new backend, so that a test may count its memory."""
    with Ggml(None, BackendParams(num_threads=2)) as made:
        yield made


@pytest.fixture(scope="module")
def without_native() -> Iterator[None]:
    """Only ggml's code computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_library(), "native", NativeCode(None))
        yield
