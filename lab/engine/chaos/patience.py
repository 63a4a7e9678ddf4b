"""How long a request may take: a busy machine gets more time, in the ratio of what runs or waits to its processors."""

from __future__ import annotations

import os

from backbay.internals import usable_cores

HANG = 5.0  # seconds, on a quiet machine


def longest() -> float:
    """The seconds after which a request, or the interpreter, hangs."""
    return HANG * max(1.0, os.getloadavg()[0] / usable_cores())
