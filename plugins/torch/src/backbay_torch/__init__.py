"""PyTorch as a backend of backbay: any device of torch, eager or compiled."""

from __future__ import annotations

from backbay import Backend, BackendUnavailableError, hookimpl

__all__ = ["backbay_backend"]


@hookimpl
def backbay_backend() -> type[Backend]:
    """The class of the backend; torch is imported for it, which takes seconds, and may fail in an extension of torch."""
    try:
        from .backend import TorchBackend
    except Exception as error:  # an extension, such as that of a device, may raise anything
        reason = f"torch cannot be imported: {error}"
        remedy = "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to leave out the extensions of torch, or mend or uninstall them"
        raise BackendUnavailableError(f"{reason}; remedy: {remedy}") from error
    return TorchBackend
