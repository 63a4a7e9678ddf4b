"""What lies on a device, if the device is not the host."""

from __future__ import annotations

from backbay import Placement, Spec


def is_resident(spec: Spec, placement: Placement) -> bool:
    """Floats do, unless they were placed on the host; integers are read by the host, and so are quantized leaves."""
    return spec.dtype.is_float and not placement.host
