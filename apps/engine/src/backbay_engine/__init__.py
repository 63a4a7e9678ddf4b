"""Language, vision and embedding models on any backbay backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from backbay.internals import naming_limits

if TYPE_CHECKING:
    from .api import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        # Whoever imports a module of the engine may need nothing else of it.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with naming_limits("importing the engine"):
            api = import_module(".api", __name__)
        return [each for each in vars(api) if each[0] != "_"] if name == "__all__" else getattr(api, name)
