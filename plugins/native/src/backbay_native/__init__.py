"""The door of backbay's native code: the plugins whose engines it serves find it, and ask what of it runs here."""

from __future__ import annotations

from .calls import multiply as multiply
from .calls import multiply_by_experts as multiply_by_experts
from .calls import tensor_of as tensor_of
from .native_code import ATTENTION as ATTENTION
from .native_code import CONVOLUTION as CONVOLUTION
from .native_code import ENTRY as ENTRY
from .native_code import EXPERTS as EXPERTS
from .native_code import FORMATS as FORMATS
from .native_code import GATES as GATES
from .native_code import MOST_ALONE as MOST_ALONE
from .native_code import MOST_KEYS as MOST_KEYS
from .native_code import MOST_TAPS as MOST_TAPS
from .native_code import OFF as OFF
from .native_code import PRODUCTS as PRODUCTS
from .native_code import RECURRENCE as RECURRENCE
from .native_code import ROWS as ROWS
from .native_code import NativeCode as NativeCode
from .native_code import find_native as find_native
