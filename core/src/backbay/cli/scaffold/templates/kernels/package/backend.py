"""The class of the backend: core runs its kernels, one after the other."""

import numpy as np

from backbay.plugin import KernelBackend

from .kernels import kernel


class MyBackend(KernelBackend):
    """A table of kernels over NumPy arrays."""

    contract_version = "CONTRACT"
    kernels = kernel
    float_dtype = np.float32  # operands come as f32; it also declares that sums are kept in f32
