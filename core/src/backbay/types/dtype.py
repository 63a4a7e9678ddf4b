"""The dtypes of tensors, with the blocks of those that are quantized."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class DType(IntEnum):
    """An element type. F64, I8 and I16 occur in files and in `Precision` only; no op takes them."""

    block_size: int  # elements in a block, 1 for plain types
    type_size: int  # bytes of a block
    is_quantized: bool
    is_float: bool  # a plain float that ops compute with
    is_integer: bool

    def __new__(cls, number: int, block_size: int, type_size: int) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.block_size, member.type_size = block_size, type_size
        # Attributes, not sets: hashing an enum member is slow, and the shape rule of every op reads them.
        member.is_quantized = block_size > 1
        member.is_float = number in (0, 1, 30)
        member.is_integer = number in (26, 27)
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18

    __hash__ = int.__hash__  # Enum's hash is slow, and dtypes are keys of caches

    def __bool__(self) -> bool:
        return True  # F32, too, whose number is 0

    def __str__(self) -> str:
        return self.name.lower()

    def row_size(self, elements: int) -> int:
        """The bytes of a row of `elements` elements, which must fill whole blocks."""
        return elements // self.block_size * self.type_size


# The dtypes that tensors may have.
CONTRACT = frozenset(d for d in DType if d.is_quantized or d.is_float or d.is_integer)
