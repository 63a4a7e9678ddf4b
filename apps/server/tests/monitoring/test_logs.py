"""Log lines: without messages of exceptions, which may quote a prompt, and never in anybody's way."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from backbay_server.monitoring import logs, set_up_logging


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "PATIENCE", 300.0)  # a slow machine writes late
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("uvicorn").level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.getLogger("uvicorn").setLevel(before[2])


@pytest.mark.parametrize("form", ["text", "json"])
def test_exceptions_are_logged_without_their_messages(form: str) -> None:
    stream = io.StringIO()
    with set_up_logging(form, stream):
        try:
            try:
                raise ValueError("a secret")
            except ValueError as inner:
                raise RuntimeError("another secret") from inner
        except RuntimeError:
            logging.getLogger("backbay_server").exception("a request failed")
    told = stream.getvalue()
    assert "secret" not in told
    assert "RuntimeError" in told
    assert "ValueError" in told
    assert "test_logs.py" in told
    if form == "json":
        line = json.loads(told)
        assert (line["level"], line["message"]) == ("error", "a request failed")


class Stuck(io.StringIO):
    """A stream of a reader that sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def write(self, text: str) -> int:
        self.awake.wait()
        return super().write(text)


def test_a_reader_that_sleeps_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_WAITING", 100)
    stream = Stuck()
    with set_up_logging("text", stream):
        for number in range(1000):
            logging.getLogger("backbay_server").info("line %d", number)
        stream.awake.set()
    assert 100 <= stream.getvalue().count("\n") <= 110


def test_a_reader_that_never_wakes_does_not_keep_the_server_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    stream = Stuck()
    with set_up_logging("text", stream):
        for number in range(100):
            logging.getLogger("backbay_server").info("line %d", number)
    stream.awake.set()
