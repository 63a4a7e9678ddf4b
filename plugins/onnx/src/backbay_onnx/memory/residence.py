"""Which leaves lie on the device, if the device is not the host."""

from __future__ import annotations

from backbay import Placement, Spec


def is_resident(spec: Spec, placement: Placement) -> bool:
    """Floats do, unless they were placed on the host. The host reads integers and quantized leaves."""
    return spec.dtype.is_float and not placement.host
