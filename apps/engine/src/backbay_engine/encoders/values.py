"""The values of a prepared picture or sound: kept read only, named by a digest, and replaced by others of their shape."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError


def read_only(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A view of the values that nobody writes."""
    view = np.ascontiguousarray(values, np.float32).view()
    view.flags.writeable = False
    return view


def digest_of(values: NDArray[np.float32], *facts: object) -> bytes:
    """A digest of contiguous values, of their shape, and of all else that describes them."""
    digest = hashlib.blake2b(repr((*facts, values.shape)).encode(), digest_size=32)
    digest.update(values.data)
    return digest.digest()


def other_values(
    given: object, old: NDArray[np.float32], name: str, error: type[RequestError]
) -> NDArray[np.float32]:
    """Values in place of old ones; an error unless they are finite floats of that shape."""
    values = np.asarray(given)
    if values.shape != old.shape:
        raise error(f"{name} must have the shape {old.shape}, got {values.shape}")
    if not np.issubdtype(values.dtype, np.floating) or not np.isfinite(values).all():
        raise error(f"{name} must be finite floats, got {values.dtype} values that are not")
    return values.astype(np.float32)
