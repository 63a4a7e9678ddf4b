"""The short way: core runs the kernels, one after the other."""

from typing import ClassVar

import numpy as np
from backbay.plugin import CacheConfig, DType, KernelBackend, Option, hookimpl

from .kernels import kernel


class FrozenKernels(KernelBackend):
    """A table of kernels over NumPy arrays."""

    contract_version = "1.1"
    kernels = kernel
    float_dtype = np.float64
    options: ClassVar = {"greeting": Option("hello", str, "an option that only shows in doctor")}

    def cache_config(self):
        return CacheConfig(dtypes=(DType.F32, DType.F16))

    @classmethod
    def diagnose(cls):
        return {"NumPy": np.__version__}


@hookimpl
def backbay_backend():
    return FrozenKernels
