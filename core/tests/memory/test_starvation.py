"""Errors of a starved system become ours, with the limit; other errors pass."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from backbay import BackendUnavailableError, ClosedError
from backbay.internals import naming_limits
from backbay.memory import host_memory as starvation


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "free"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "free"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left"),
        (ImportError("x.so: failed to map segment from shared object"), "free"),
        (RuntimeError("can't start new thread"), "free"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("can't allocate lock"), "free"),
        (SystemError("compile returned NULL without setting an exception"), "free"),
        (SystemError("error return without exception set"), "free"),
    ],
)
def test_what_the_system_refuses_is_an_error_with_the_limit(error: Exception, limit: str) -> None:
    with (
        pytest.raises(BackendUnavailableError, match=limit) as caught,
        naming_limits("loading the moon"),
    ):
        raise error
    assert "loading the moon: the system refused: " in str(caught.value)
    assert caught.value.__cause__ is error


def test_python_itself_fails_where_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SystemError("initialization of _x raised unreported exception")
    with pytest.raises(SystemError), naming_limits("a request"):
        raise error
    monkeypatch.setattr(starvation, "_soft", lambda name: 400 << 20 if name == "AS" else None)
    with pytest.raises(BackendUnavailableError, match="ulimit -v"), naming_limits("a request"):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no"),
        RuntimeError("a bug"),
        ImportError("no module"),
        ClosedError("closed"),
    ],
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, naming_limits("loading the moon"):
        raise error
    assert caught.value is error


def test_limits_are_named_where_no_memory_is_left_to_read_how_much_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(path: Path, *_: object, **__: object) -> str:
        raise MemoryError

    monkeypatch.setattr(starvation, "_soft", lambda name: 1 << 23 if name == "AS" else None)
    monkeypatch.setattr(Path, "read_text", refused)
    with (
        pytest.raises(BackendUnavailableError, match=r"8\.0 MiB of address space"),
        naming_limits("a request"),
    ):
        raise MemoryError
