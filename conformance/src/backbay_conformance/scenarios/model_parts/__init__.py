"""Scenarios of parts of models: blocks that backends may fuse, experts, and parts of one tensor."""

from . import blocks as blocks
from . import experts as experts
from . import tensor_parts as tensor_parts
