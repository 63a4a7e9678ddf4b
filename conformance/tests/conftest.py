"""What all tests of the suite share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own: calls that failed in another test would be tried first."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the broken backends too."""
    monkeypatch.syspath_prepend(str(HERE))
    path = ":".join(entry for entry in sys.path if entry)
    monkeypatch.setenv("PYTHONPATH", path)
