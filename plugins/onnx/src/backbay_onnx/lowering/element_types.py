"""Element types of ONNX."""

from __future__ import annotations

from typing import Literal

from onnx import TensorProto

from backbay import DType

Form = Literal["stored", "floats", "raw"]
"""stored: in its own dtype, quantized types as float32; floats: as float32; raw: quantized rows as bytes."""

ONNX: dict[DType, int] = {
    DType.F32: TensorProto.FLOAT,
    DType.F16: TensorProto.FLOAT16,
    DType.BF16: TensorProto.BFLOAT16,
    DType.I32: TensorProto.INT32,
    DType.I64: TensorProto.INT64,
}


def held(dtype: DType) -> DType:
    """The dtype of values inside of a model: quantized types are decoded."""
    return DType.F32 if dtype.is_quantized else dtype


def onnx_type(dtype: DType) -> int:
    return ONNX[held(dtype)]


def binding_type(dtype: DType) -> int:
    """The element type that IOBinding takes: quantized types are bytes."""
    return TensorProto.UINT8 if dtype.is_quantized else ONNX[dtype]
