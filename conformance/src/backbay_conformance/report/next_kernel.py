"""What a backend lacks: the kernels to write next for a Llama, for an encoder, for every op."""

from __future__ import annotations

from collections.abc import Mapping

import backbay
from backbay import BackendParams
from backbay.cli import next_kernels, say, typed


def show_next(backend: str, options: Mapping[str, str]) -> None:
    """Print the kernels that are missing, and the specification of the first."""
    with backbay.open(
        None, backend=backend, params=BackendParams(alloc_memory=False, options=options)
    ) as opened:
        missing, kernels = next_kernels(opened), len(opened.kernels)
    say(f"{backend} has {kernels} kernels")
    seen = ""
    for goal, ops in missing.items():
        if ops:
            say(f"for {goal}{seen}: {', '.join(op.name for op in ops)}")
        else:
            say(f"for {goal}{seen}: nothing is missing")
        seen = " also"
    first = next((op for ops in missing.values() for op in ops), None)
    if first is not None:
        say(f"\nnext: {typed(first)}\n\n{first.doc}\n")
        say(f"when it is written: backbay conform {backend} --op {first.name} --size smoke")
