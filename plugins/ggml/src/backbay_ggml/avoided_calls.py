"""The calls that run by other code than ggml's own for them, by op and dtype, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backbay import DType
from backbay_native import ATTENTION, CONVOLUTION, RECURRENCE, ROWS

from .devices.device import Device
from .library.library import Library
from .ops.attention import CACHES
from .weights.arrangements import known_faults

FLOATS = (DType.F32,)
NATIVE = {
    ATTENTION: ("scaled_dot_product_attention", CACHES),
    CONVOLUTION: ("ssm_conv", FLOATS),
    RECURRENCE: ("delta_rule ssm_scan", FLOATS),
    ROWS: ("concat rows set_rows", FLOATS),
}
"""The ops and dtypes of backbay's native code, by purpose; those of products are its formats."""


def avoided_calls(library: Library, devices: Iterable[Device]) -> dict[str, str]:
    """The reason by op and dtype; several reasons of a call are joined."""
    found: dict[str, str] = {}
    for call, why in _avoided(library, devices) if library.avoidances else ():
        found[call] = f"{found[call]}; {why}" if call in found else why
    return found


def _avoided(library: Library, devices: Iterable[Device]) -> Iterator[tuple[str, str]]:
    for ops, why, dtypes in library.avoidances:
        yield from _calls(ops, dtypes, why)
    for purpose, (ops, dtypes) in NATIVE.items():
        if library.native.has(purpose):
            yield from _calls(ops, dtypes, "backbay's native code is faster")
    for dtype in dict.fromkeys(name.removesuffix("_X8").lower() for name in library.native.formats):
        yield f"mulmat {dtype}", "backbay's native code is faster"
        if library.native.formats_of_experts:
            yield f"mulmat_id {dtype}", "backbay's native code is faster"
    for name, why in known_faults(library).items():
        yield f"mulmat of weights in {name}", why
    for device in devices:
        for case, why in device.verdict.wrong.items() if device.verdict is not None else ():
            yield f"{case} on {device.id}", why


def _calls(ops: str, dtypes: Iterable[DType], why: str) -> Iterator[tuple[str, str]]:
    return ((f"{op} {dtype}", why) for op in ops.split() for dtype in dtypes)
