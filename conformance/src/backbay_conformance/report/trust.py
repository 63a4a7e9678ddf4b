"""What a file of somebody else's may choose on this machine: an installed backend, and nothing more without trust."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backbay import OptionError

TRUST_HELP = (
    "let the file choose a backend that is not installed, and options, which may run code of its author's"
)


def require_trust(path: Path | str, backend: str, options: Mapping[str, Any], way: str = "") -> None:
    """Refuse a backend or options that a file names, as they may run code or reach other machines.

    `way` is how a user names the same on the command line.
    """
    wishes = [f"the backend {backend}"] if ":" in backend else []
    wishes += [f"the option {name}={value}" for name, value in options.items()]
    if wishes:
        wanted = " and ".join(wishes)
        raise OptionError(
            f"{path} asks for {wanted}, which may run code of its author's: {way}add --trust if you trust the file"
        )
