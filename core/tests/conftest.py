"""What the tests of core share: the reference backend, and contexts on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environment import Environment

import backbay


@pytest.fixture(scope="module", autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKBAY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def backend() -> Iterator[backbay.Backend]:
    with backbay.open(None, backend="cpu_ref") as opened:
        yield opened


@pytest.fixture
def ctx(backend: backbay.Backend) -> Iterator[backbay.Context]:
    with backend.new_context() as opened:
        yield opened


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)
