"""ggml's messages in Python's logging."""

from __future__ import annotations

import logging

from backbay_ggml.library import library
from backbay_ggml.library.abi import ffi


def test_ggml_logs_through_python(caplog) -> None:
    with caplog.at_level(logging.DEBUG, logger="backbay.ggml"):
        for level, piece in ((4, b"something "), (5, b"failed\n"), (2, b"a detail\n")):
            library._receive_log(level, ffi.new("char[]", piece), None)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (40, "something failed"),
        (10, "a detail"),
    ]
