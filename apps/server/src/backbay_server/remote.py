"""The door for applications over models in other processes; Ray's replicas stand on it, and it is promised to no others."""

from .application import build_application as build_application
from .catalogue import Catalogue as Catalogue
from .catalogue import CatalogueEntry as CatalogueEntry
from .catalogue import load_entry as load_entry
from .errors import UnavailableError as UnavailableError
from .generation.answer import EventLoopBridge as EventLoopBridge
from .monitoring.logs import TextFormatter as TextFormatter
from .transport.request_checks import read_keys as read_keys
