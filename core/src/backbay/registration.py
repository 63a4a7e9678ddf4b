"""From a plugin's module to its backend class: hooks are checked, and so is what they return."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from .backend import CONTRACT_VERSION, Backend
from .errors import BackendUnavailableError

HOOK = "backbay_backend"


def backend_class(plugin: object, name: str) -> type[Backend]:
    """The class that a plugin's hook returns; BackendUnavailableError names what is wrong with either."""
    from pluggy import PluginManager, PluginValidationError

    from . import hookspecs

    manager = PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except PluginValidationError as error:
        raise BackendUnavailableError(f"{_first_line(error)}; the hook is {HOOK}()") from error
    if not manager.hook.backbay_backend.get_hookimpls():
        raise BackendUnavailableError(_no_hook(plugin))
    try:
        found = manager.hook.backbay_backend()
    except (Exception, SystemExit) as error:
        raise BackendUnavailableError(f"{HOOK}() raised {describe(error)}") from error
    return check_class(found)


def check_class(found: object) -> type[Backend]:
    """The class again, if it is a whole backend, written for this contract."""
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise BackendUnavailableError(f"{HOOK}() must return a subclass of backbay.Backend, got {found!r}")
    theirs = getattr(found, "contract_version", None)
    if theirs is None:
        raise BackendUnavailableError(
            f"{found.__qualname__} states no contract version; this backbay has {CONTRACT_VERSION}: "
            f"if the class was written for it, add `contract_version = {CONTRACT_VERSION}`"
        )
    if theirs != CONTRACT_VERSION:
        raise BackendUnavailableError(
            f"{found.__qualname__} was written for contract version {theirs}, this backbay has "
            f"{CONTRACT_VERSION}; install releases that match"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise BackendUnavailableError(f"{found.__qualname__} does not implement {missing}")
    return found


def describe(error: BaseException) -> str:
    """An error of somebody else's code in one line."""
    if isinstance(error, BackendUnavailableError):
        return str(error)
    return f"{type(error).__name__}: {_first_line(error)}"


def _no_hook(plugin: object) -> str:
    what = getattr(plugin, "__name__", repr(plugin))
    if hasattr(plugin, HOOK):
        return f"{what}.{HOOK} is not marked as a hook: decorate it with @backbay.hookimpl"
    near = get_close_matches(HOOK, [name for name in dir(plugin) if not name.startswith("__")], n=1)
    hint = f"; {near[0]} is a misspelling of it, perhaps" if near else ""
    return f"{what} has no hook {HOOK}(), decorated with @backbay.hookimpl{hint}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
