"""What all tests of the suite share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers find the broken backends too, and no failures that another test has kept."""
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.syspath_prepend(str(HERE))
    path = ":".join(entry for entry in sys.path if entry)
    monkeypatch.setenv("PYTHONPATH", path)
