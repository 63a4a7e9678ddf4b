"""All that other packages add to backbay: a hook for each kind, which a plugin implements with `@backbay.hookimpl`.

An entry point of the kind's group names the plugin, or what its hook would return. `name` is the entry point's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from ..backend.backend import Backend
    from ..cli.program import Command
    from ..gguf import ModelFile

PROJECT = "backbay"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def backbay_backend(name: str) -> type[Backend] | None:
    """The class of the backend `name`; group backbay.backends, or backbay.adapters if it needs an option to run at all."""


@hookspec(firstresult=True)
def backbay_command(name: str) -> Command | None:
    """The command `backbay NAME`; group backbay.commands."""


@hookspec(firstresult=True)
def backbay_model_file(name: str) -> Callable[..., ModelFile | None] | None:
    """A function like `open_model` that returns None for what it does not open; group backbay.model_files."""


@hookspec(firstresult=True)
def backbay_model(name: str) -> type[Any] | None:
    """The engine's `Model` of the architecture `name`; group backbay.models."""


@hookspec(firstresult=True)
def backbay_checkpoint(name: str) -> object:
    """The engine's `Family` of transformers' class `name`, or a function of its `Settings`; group backbay.checkpoints."""


@hookspec(firstresult=True)
def backbay_op_users(name: str) -> Mapping[str, Collection[str]] | None:
    """The architectures by op, which `backbay ops` shows; group backbay.op_users."""


@hookspec(firstresult=True)
def backbay_scenarios(name: str) -> object:
    """Nothing: the suite's scenarios are declared where they are imported; group backbay_conformance.scenarios."""


manager = pluggy.PluginManager(PROJECT)
manager.add_hookspecs(sys.modules[__name__])
