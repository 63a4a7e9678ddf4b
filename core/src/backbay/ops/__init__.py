"""The ops of the contract, a module for each family. An op's docstring is its specification."""

from .attention import *
from .binary import *
from .elementwise import *
from .index import *
from .linear import *
from .matrix import *
from .norm import *
from .order import *
from .reduce import *
from .sequence import *
from .shape import *
from .spatial import *
from .write import *
