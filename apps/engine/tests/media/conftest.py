"""Models that see, and models that hear, for the tests of this folder."""

from __future__ import annotations

import pytest
from seeing_models import Files, Gate
from small_sound import KINDS as HEARING
from small_sound import write_small_sound
from small_vision import FAMILIES, write_small_vision


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("media")
    seeing = {kind: write_small_vision(folder, kind) for kind in FAMILIES}
    return {**seeing, **{kind: write_small_sound(folder, kind) for kind in HEARING}}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)
