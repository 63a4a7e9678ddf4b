"""`backbay serve` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Served:
    """The process, and the address at which it listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url


@contextmanager
def serving(*words: object, **options: Any) -> Iterator[Served]:
    """A server for these words of the command line, killed at the end if it still runs."""
    command = [sys.executable, "-W", "error", "-m", "backbay", "serve", *map(str, words)]
    command += [] if "--port" in words else ["--port", "0"]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(command, text=True, **piped) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.fullmatch(r"listening on (http://\S+)\n", line)
            assert match, line or (process.stderr.read() if process.stderr else "")
            yield Served(process, match[1])
        finally:
            if process.poll() is None:
                process.kill()
