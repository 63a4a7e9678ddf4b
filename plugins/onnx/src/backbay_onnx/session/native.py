"""Native code as custom ops of ONNX Runtime. Where it is missing, off, or fails its trial, ONNX Runtime does the work."""

from __future__ import annotations

from functools import cache

from backbay import BackbayError
from backbay_native import NativeCode, find_native

from .runtime import load_runtime, translate_errors

VARIABLE = "BACKBAY_ONNX_NATIVE"  # names the file, or turns it off
DOMAIN = "backbay"  # of the custom ops
NO_NATIVE = NativeCode(None)


@cache
def native_code() -> NativeCode:
    """The native code that sessions on the CPU use, if this ONNX Runtime takes its ops."""
    code = find_native(VARIABLE)
    if code.path is not None:
        try:
            with translate_errors("registering native code"):
                load_runtime().SessionOptions().register_custom_ops_library(str(code.path))
        except BackbayError as error:
            return NativeCode(None, str(error))
    return code
