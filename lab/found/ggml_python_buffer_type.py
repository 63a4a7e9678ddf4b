"""ggml_backend_cpu_buffer_type of ggml-python returns a pointer cut to 32 bits: its result type is a
NewType, which ctypes takes for a function of an int.

project: ggml-python
effect: whatever gets the pointer crashes
workaround: plugins/ggml/src/backbay_ggml/library/abi.py: ffi
thread: none found
shown: 0.0.45
right: none
"""

import sys
from importlib.metadata import version

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml-python", version("ggml-python"))
backend = ggml.ggml_backend_cpu_init()
expected = ggml.ggml_backend_get_default_buffer_type(backend)
came = ggml.ggml_backend_cpu_buffer_type()
print("expected", expected)
print("came    ", came)
sys.exit(0 if came != expected else 1)
