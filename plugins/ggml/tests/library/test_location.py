"""The search for libggml."""

from __future__ import annotations

import pytest

from backbay import BackendUnavailableError
from backbay_ggml.library.location import VARIABLE, locate


def test_the_environment_names_a_file_or_a_folder(monkeypatch) -> None:
    path = locate()
    for named in (path, path.parent):
        monkeypatch.setenv(VARIABLE, str(named))
        assert locate().parent == path.parent


def test_a_wrong_name_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="no such library"):
        locate()


def test_without_any_library_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("backbay_ggml.library.location.PACKAGES", ("no-such-package",))
    with pytest.raises(BackendUnavailableError, match="pip install ggml-python"):
        locate()
