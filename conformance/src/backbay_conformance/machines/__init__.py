"""Lives of a backend and of a cache: random sequences of actions, compared with a model in plain NumPy."""

from .backend_life import BackendLife as BackendLife
from .cache_life import CacheLife as CacheLife
