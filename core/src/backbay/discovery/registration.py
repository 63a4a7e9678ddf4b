"""Registration: from the object that an entry point names to the result of its hook, and the checks of a backend class."""

from __future__ import annotations

import inspect
from importlib import import_module
from threading import RLock
from typing import Any

from ..backend.backend import Backend
from ..backend.hooks import BackendHooks
from ..errors import BackendUnavailableError
from ..types.contract_version import CONTRACT_VERSION, ContractVersion

HOOK = "backbay_backend"
LOCK = RLock()  # of the manager: pluggy has none


def hook_result(hook: str, plugin: object, name: str) -> Any:
    """The result of a plugin's hook, for the entry point with this name; a class, or what has no hooks, is one itself."""
    if isinstance(plugin, type):
        return plugin
    from pluggy import PluginValidationError  # takes as long to import as the rest of core

    from .hook_specs import manager

    key = f"{hook}:{name}"
    with LOCK:
        if not any(manager.parse_hookimpl_opts(plugin, part) for part in dir(plugin)):
            return plugin
        try:
            if not manager.is_registered(plugin):
                manager.register(plugin, key)
                manager.check_pending()
        except PluginValidationError as error:
            manager.unregister(name=key)  # or the check would fail for all others, too
            why = f"{' '.join(str(error).split())}; backbay.discovery.hook_specs lists all hooks"
            raise PluginValidationError(plugin, why) from error
        caller = manager.subset_hook_caller(hook, manager.get_plugins() - {plugin})
    return caller(name=name) if caller.get_hookimpls() else plugin


def backend_class(plugin: object, name: str) -> type[Backend]:
    """The class that a plugin is, or that its hook returns; BackendUnavailableError if it is not a complete backend."""
    found = hook_result(HOOK, plugin, name)
    if found is plugin and not isinstance(plugin, type):
        raise BackendUnavailableError(_no_hook(plugin))
    return check_class(found)


def _no_hook(plugin: object) -> str:
    from difflib import get_close_matches  # takes longer to import than most of core

    what = getattr(plugin, "__name__", repr(plugin))
    if hasattr(plugin, HOOK):
        return f"{what}.{HOOK} is not marked as a hook: decorate it with @backbay.hookimpl"
    near = get_close_matches(HOOK, [name for name in dir(plugin) if not name.startswith("__")], n=1)
    hint = f"; perhaps {near[0]} is misspelled" if near else ""
    return f"{what} has no hook {HOOK}(), decorated with @backbay.hookimpl{hint}"


def class_at(path: str) -> type[Backend]:
    """The class given as `module:Class`; BackendUnavailableError, with the module's backends, if there is none."""
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise BackendUnavailableError("a class must be given as module:Class")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports a missing one
        where = "it must lie in the current folder, or in one that PYTHONPATH names"
        raise BackendUnavailableError(f"there is no module {name!r}; {where}") from error
    if not hasattr(module, attribute):
        classes = {key: kind for key, kind in vars(module).items() if isinstance(kind, type)}
        backends = [key for key, kind in classes.items() if issubclass(kind, Backend)]
        theirs = [key for key in backends if hasattr(classes[key], "contract_version")]  # not core's own two
        why = f"has no {attribute!r}; its backends: {', '.join(theirs) or 'none'}"
        raise BackendUnavailableError(f"module {name!r} {why}")
    return check_class(getattr(module, attribute))


def check_class(found: object) -> type[Backend]:
    """Check that a class is a complete backend for a version of the contract that core runs, and return it."""
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise BackendUnavailableError(f"a backend is a subclass of backbay.Backend, got {found!r}")
    _check_version(found)
    overridden = [
        name
        for name, ours in vars(Backend).items()
        if is_final(ours) and inspect.getattr_static(found, name) is not ours
    ]
    if overridden:
        hooks = [
            name
            for name in vars(BackendHooks)
            if not name.startswith("_")
            and callable(getattr(Backend, name))
            and not is_final(inspect.getattr_static(Backend, name))
        ]
        raise BackendUnavailableError(
            f"{found.__qualname__} overrides {', '.join(overridden)}, which core needs as it is; a plugin may override "
            f"{', '.join(sorted(hooks))}"
        )
    if hidden := _hidden_names(found):
        why = "which core's classes use inside; choose other names"
        raise BackendUnavailableError(f"{found.__qualname__} hides {', '.join(hidden)}, {why}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise BackendUnavailableError(f"{found.__qualname__} does not implement {missing}")
    return found


def _check_version(found: type[Backend]) -> None:
    theirs = getattr(found, "contract_version", None)
    if theirs is None:
        raise BackendUnavailableError(
            f"{found.__qualname__} states no contract version; this backbay has {CONTRACT_VERSION}: "
            f'if the class was written for it, add `contract_version = "{CONTRACT_VERSION}"`'
        )
    try:
        written_for = ContractVersion.parse(theirs)
    except ValueError as error:
        raise BackendUnavailableError(f"{found.__qualname__}.contract_version: {error}") from None
    if not CONTRACT_VERSION.takes(written_for):
        raise BackendUnavailableError(
            f"{found.__qualname__} was written for contract version {written_for}, this backbay has "
            f"{CONTRACT_VERSION}; install releases that match"
        )


def _hidden_names(found: type) -> list[str]:
    """The private names of core's classes that a plugin's classes define again."""
    ours = [kind for kind in found.__mro__ if kind.__module__.partition(".")[0] == "backbay"]
    private = {name for kind in ours for name in vars(kind) if name.startswith("_") and name[1:2] != "_"}
    private -= {"_abc_impl"}  # each abstract class has its own
    return sorted(private & {name for kind in found.__mro__ if kind not in ours for name in vars(kind)})


def is_final(attribute: object) -> bool:
    """Whether an attribute of a class, or its getter, is marked as final."""
    return bool(getattr(getattr(attribute, "fget", attribute), "__final__", False))
