"""Registration: from the object that an entry point names to a backend class, with checks of the hook and of the class."""

from __future__ import annotations

import inspect
from importlib import import_module

from ..backend.backend import Backend
from ..backend.hooks import BackendHooks
from ..errors import BackendUnavailableError, describe, first_line
from ..memory.host_memory import raise_if_starved
from ..types.contract_version import CONTRACT_VERSION, ContractVersion

HOOK = "backbay_backend"


def backend_class(plugin: object, name: str) -> type[Backend]:
    """The class that a plugin is, or that its hook returns; BackendUnavailableError if hook or class is wrong."""
    if isinstance(plugin, type):
        return check_class(plugin)
    from pluggy import PluginManager, PluginValidationError

    from . import hook_specs

    manager = PluginManager(hook_specs.PROJECT)
    manager.add_hookspecs(hook_specs)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except PluginValidationError as error:
        raise BackendUnavailableError(f"{first_line(error)}; the hook is {HOOK}()") from error
    if not manager.hook.backbay_backend.get_hookimpls():
        raise BackendUnavailableError(_no_hook(plugin))
    try:
        found = manager.hook.backbay_backend()
    except (Exception, SystemExit) as error:
        raise_if_starved(error, f"{HOOK}()")
        raise BackendUnavailableError(f"{HOOK}() raised {describe(error)}") from error
    return check_class(found, f"{HOOK}() must return")


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


def check_class(found: object, rule: str = "a backend is") -> type[Backend]:
    """Check that a class is a complete backend for a version of the contract that core runs, and return it."""
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise BackendUnavailableError(f"{rule} a subclass of backbay.Backend, got {found!r}")
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
