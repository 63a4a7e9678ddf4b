"""The door for applications over models in other processes; Ray's replicas stand on it, and it is promised to no others."""

from .application import application as application
from .catalogue import Catalogue as Catalogue
from .catalogue import Entry as Entry
from .catalogue import load_entry as load_entry
from .errors import UnavailableError as UnavailableError
from .generation.answer import Bridge as Bridge
from .transport.request_checks import read_keys as read_keys
from .watching.logs import TextLines as TextLines
