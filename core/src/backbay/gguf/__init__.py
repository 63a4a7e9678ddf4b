"""Model files: a lazy, bounded reader of GGUF versions 2 and 3. Headers are read, weights are mapped."""

from __future__ import annotations

from backbay.errors import nearest as nearest

from .config import Config as Config
from .content import Content as Content
from .content import ValueType as ValueType
from .content import open_content as open_content
from .header import Derived as Derived
from .header import TensorInfo as TensorInfo
from .keys import Key as Key
from .keys import choice as choice
from .keys import flag as flag
from .keys import number as number
from .keys import numbers as numbers
from .keys import text as text
from .keys import texts as texts
from .keys import whole as whole
from .keys import wholes as wholes
from .metadata import Strings as Strings
from .model_file import ModelFile as ModelFile
from .model_file import open as open
