"""The machines of a backend and of a cache: random sequences of actions, compared with a model in plain NumPy."""

from .backend_machine import BackendMachine as BackendMachine
from .cache_machine import CacheMachine as CacheMachine
