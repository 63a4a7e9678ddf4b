"""A backend without a model, and a context of it."""

from collections.abc import Iterator

import pytest

from backbay import Context
from backbay_cpu_ref import CpuRef


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuRef]:
    with CpuRef() as backend:
        yield backend


@pytest.fixture
def ctx(backend: CpuRef) -> Iterator[Context]:
    with backend.new_context() as ctx:
        yield ctx
