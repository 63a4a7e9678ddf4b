"""The largest relative error of rounding to a float type."""

from backbay import DType

ROUNDOFFS = {DType.F64: 2.0**-53, DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
