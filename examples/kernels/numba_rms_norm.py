"""The root mean square norm as a loop that numba compiles, on NumPy's arrays with their strides, and its proof."""

import numpy as np
from numba import guvectorize

from backbay_conformance import check_kernel


@guvectorize(["f4[:], f4[:], f4, f4[:]"], "(n), (n), () -> (n)")
def norm_row(x, weight, eps, y):
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    root = np.sqrt(total / np.float32(len(x)) + eps)
    for i in range(len(x)):
        y[i] = x[i] / root * weight[i]


def rms_norm(x, weight=None, eps=1e-5):
    return norm_row(x, np.float32([1]).repeat(x.shape[-1]) if weight is None else weight, eps)


def test_rms_norm():
    check_kernel(rms_norm, "rms_norm", native=True, dtypes="f32")
