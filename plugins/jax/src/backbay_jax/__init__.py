"""JAX as a backend of backbay: any platform of JAX, or the library of a PJRT plugin."""

from __future__ import annotations

from backbay import Backend, BackendUnavailableError, hookimpl

__all__ = ["backbay_backend"]


@hookimpl
def backbay_backend() -> type[Backend]:
    """The class of the backend; JAX is imported for it, when it is opened, not when it is listed."""
    try:
        from .backend import JaxBackend
    except ImportError as error:
        reason = f"JAX cannot be imported: {error}"
        raise BackendUnavailableError(f"{reason}; remedy: pip install 'jax>=0.8,<0.11'") from error
    return JaxBackend
