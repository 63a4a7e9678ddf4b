"""Language, vision and embedding models on any backbay backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
else:

    def __getattr__(
        name: str,
    ) -> object:  # modules of the engine are also imported without all that it offers
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(".api", __name__), name)
