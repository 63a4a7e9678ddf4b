"""The search for libggml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backbay import BackendUnavailableError
from backbay_ggml.library.location import OURS, PACKAGES, VARIABLE, locate_library


def test_the_environment_names_a_file_or_a_folder(monkeypatch) -> None:
    path = locate_library()
    for named in (path, path.parent):
        monkeypatch.setenv(VARIABLE, str(named))
        assert locate_library().parent == path.parent


def test_a_wrong_name_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="no such library"):
        locate_library()


def test_without_any_library_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("backbay_ggml.library.location.PACKAGES", ("no-such-package", "nor-such"))
    with pytest.raises(BackendUnavailableError, match=r"pip install \./plugins/ggml/lib"):
        locate_library()


def installed(site: Path, package: str) -> Path:
    """An installed distribution with a libggml, as pip records it."""
    name = package.replace("-", "_")
    library = site / name / "libggml.so"
    record = site / f"{name}-1.0.dist-info" / "RECORD"
    for path in (library, record):
        path.parent.mkdir()
    library.write_bytes(b"")
    record.with_name("METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    record.write_text(f"{name}/libggml.so,,\n")
    return library


def test_our_own_library_is_taken_before_those_of_other_packages(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert PACKAGES[0] == OURS
    for package in reversed(PACKAGES):
        assert installed(tmp_path, package) == locate_library()


def test_a_library_that_the_environment_names_comes_before_our_own(monkeypatch, tmp_path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, OURS)
    named = tmp_path / "elsewhere" / "libggml.so"
    named.parent.mkdir()
    named.write_bytes(b"")
    monkeypatch.setenv(VARIABLE, str(named))
    assert locate_library() == named
