"""The onnxruntime module, its errors as ours, and its way out of a forked child."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any, final

from backbay import BackbayError, BackendUnavailableError, CancelledError
from backbay.internals import close_after_fork, raise_if_starved

from .providers import GPU_PROVIDERS, HOST_PROVIDER


@final
class ChildExitHook:
    """Lets a forked child exit without the C++ destructors of the libraries that it inherited."""

    def after_fork(self, reason: str) -> None:
        libc = ctypes.CDLL(None)
        if hasattr(
            libc, "on_exit"
        ):  # of glibc; its handlers get the exit status, and the last one runs first
            libc.on_exit(libc._exit, None)
            libc.on_exit(libc.fcloseall, None)


@cache
def skip_destructors_after_fork() -> ChildExitHook:
    """Prepare every later fork of this process; the cache keeps the object alive."""
    child_exit = ChildExitHook()
    close_after_fork(child_exit)
    return child_exit


DISTRIBUTIONS = tuple(provider.distribution for provider in (HOST_PROVIDER, *GPU_PROVIDERS))
NO_MEMORY = ("Failed to allocate memory", "Available memory of", "bad_alloc")


@cache
def load_runtime() -> Any:
    """The onnxruntime module; BackendUnavailableError with a remedy if it is missing, broken, or installed twice."""
    installed = [name for name in DISTRIBUTIONS if is_installed(name)]
    if len(installed) > 1:
        raise BackendUnavailableError(
            f"{' and '.join(installed)} are both installed and overwrite each other's files; "
            f"remedy: pip uninstall {' '.join(installed)}, then install one of them again"
        )
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # its extension module wraps even Ctrl+C
            raise KeyboardInterrupt from error
        raise_if_starved(error, "loading ONNX Runtime")
        why = "is broken" if installed else "is not installed"
        raise BackendUnavailableError(
            f"ONNX Runtime {why} ({error}); remedy: pip install onnxruntime, or onnxruntime-gpu[cuda,cudnn] for CUDA"
        ) from error
    skip_destructors_after_fork()
    onnxruntime.set_default_logger_severity(4)  # errors are raised as exceptions; users need no other message
    return onnxruntime


def is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """The one place where errors of ONNX Runtime, which share no base class, become ours."""
    try:
        yield
    except (BackbayError, MemoryError):
        raise
    except Exception as error:
        message = str(error)
        if not _is_foreign(error):
            raise
        if any(text in message for text in NO_MEMORY):
            raise MemoryError(f"{doing}: {message}") from error
        raise_if_starved(error, f"ONNX Runtime, {doing}")
        if "terminate flag" in message:
            raise CancelledError from error
        raise BackbayError(f"ONNX Runtime failed while {doing}: {message}") from error


def _is_foreign(error: Exception) -> bool:
    """IOBinding raises plain RuntimeErrors; the other classes live in the extension module."""
    return type(error) is RuntimeError or "onnxruntime" in type(error).__module__
