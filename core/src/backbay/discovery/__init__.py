"""Installed backends: finding them by entry points, checking, probing and opening them."""

from .installed import BackendEntry as BackendEntry
from .installed import Declared as Declared
from .installed import backends as backends
from .installed import conflict as conflict
from .installed import declared as declared
from .installed import entry as entry
from .installed import trial_seconds as trial_seconds
from .opening import is_auto as is_auto
from .opening import open_model as open_model
from .speeds import BackendSpeed as BackendSpeed
from .speeds import KeptTrial as KeptTrial
from .speeds import SpeedTrial as SpeedTrial
from .speeds import version_of as version_of
