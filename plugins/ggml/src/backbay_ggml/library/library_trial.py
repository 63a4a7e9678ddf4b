"""The trial of a library that somebody names: a child process opens it first, as a broken one may end its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backbay import BackendUnavailableError
from backbay.internals import exit_name, forced_cpu, raise_if_starved, run_helper
from backbay.plugin import CachedValue

from .location import library_stamp

TIMEOUT = 60.0  # seconds
OPENED = "opened"  # what the child prints at its end


def try_library(path: Path) -> None:
    """BackendUnavailableError if a child process cannot open the library. One that it opened is not tried again."""
    kept = CachedValue("trials", "ggml-library", [sys.version, forced_cpu(), str(path), *library_stamp(path)])
    if kept.recall() == OPENED:
        return
    try:
        done = run_helper([sys.executable, "-m", __name__, str(path)], timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(f"{path} cannot be used: it was loading for {TIMEOUT:g} s") from None
    except OSError as error:
        raise_if_starved(error, f"trying {path}")
        raise BackendUnavailableError(f"{path} cannot be tried: {error}") from error
    said = done.stdout.strip().splitlines()
    if said[-1:] == [OPENED]:
        kept.keep(OPENED)
        return
    last = "".join((done.stderr.strip().splitlines() or said)[-1:])
    raise BackendUnavailableError(
        last.removeprefix(REFUSED)
        if last.startswith(REFUSED)
        else f"{path} ends the process that loads it ({exit_name(done.returncode)}): {last}"
    )


REFUSED = "refused: "

if __name__ == "__main__":
    from .library import Library

    try:
        Library(Path(sys.argv[1]), any_version=True)
    except BackendUnavailableError as error:
        sys.exit(f"{REFUSED}{error}")
    sys.stdout.write(OPENED)
