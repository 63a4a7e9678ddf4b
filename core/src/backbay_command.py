"""The command `backbay`. Importing the package takes a moment, and Ctrl+C ends the command then as it does later."""  # noqa: INP001  beside the package

import os
import signal

INTERRUPTED = 130


def console() -> None:
    """Run the command line of this process and end it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # who started this process may ignore Ctrl+C
        signal.signal(signal.SIGINT, _end)
    from backbay.cli.program import console as run

    signal.signal(signal.SIGINT, handler)
    run()


def _end(_signal: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
