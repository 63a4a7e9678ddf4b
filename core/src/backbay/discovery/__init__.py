"""Installed backends: finding them by entry points, checking, probing and opening them."""

from .installed import BackendEntry as BackendEntry
from .installed import PluginEntry as PluginEntry
from .installed import backends as backends
from .installed import conflict as conflict
from .installed import declared as declared
from .installed import entry as entry
from .installed import trial_seconds as trial_seconds
from .opening import is_auto as is_auto
from .opening import open_model as open_model
from .records import BackendSpeed as BackendSpeed
from .records import SpeedTrial as SpeedTrial
from .records import TrialFile as TrialFile
from .records import version_of as version_of
