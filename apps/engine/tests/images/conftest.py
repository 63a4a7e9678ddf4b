"""Models that see, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seeing_models import Files, Gate, opened
from small_vision import FAMILIES, KINDS, write_small_vision

from backbay_engine import LLM


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("vision")
    return {kind: write_small_vision(folder, kind) for kind in FAMILIES}


@pytest.fixture(scope="module", params=KINDS)
def llm(files: Files, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with opened(files, request.param) as model:
        yield model


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)
