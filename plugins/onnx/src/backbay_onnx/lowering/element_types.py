"""What ONNX calls the element types."""

from __future__ import annotations

from typing import Literal

from onnx import TensorProto

from backbay import DType

Form = Literal["stored", "floats", "raw"]
"""In its own dtype, quantized types as float32; as float32; quantized rows as bytes."""

ONNX: dict[DType, int] = {
    DType.F32: TensorProto.FLOAT,
    DType.F16: TensorProto.FLOAT16,
    DType.BF16: TensorProto.BFLOAT16,
    DType.I32: TensorProto.INT32,
    DType.I64: TensorProto.INT64,
}


def held(dtype: DType) -> DType:
    """The dtype that values have inside of a model: quantized ones are the numbers that they stand for."""
    return DType.F32 if dtype.is_quantized else dtype


def onnx_type(dtype: DType) -> int:
    return ONNX[held(dtype)]


def binding_type(dtype: DType) -> int:
    """What IOBinding takes for an element type: NumPy has no bfloat16, and quantized types are bytes."""
    return TensorProto.UINT8 if dtype.is_quantized else ONNX[dtype]
