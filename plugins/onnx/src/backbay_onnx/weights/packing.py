"""Quantized weights in the encoding that ONNX Runtime's MatMulNBits takes: the same integers, the same scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import DType
from backbay.internals import cached_property

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
CHUNK = 1 << 17  # elements unpacked at a time, as unpacked elements take memory


@dataclass(frozen=True)
class PackedEncoding:
    """An element is (code - zero) * scale - min, with a scale and perhaps a min for each block of a row."""

    bits: int
    block: int
    zero: int
    has_mins: bool = False

    @property
    def centre(self) -> int:
        """The number that MatMulNBits subtracts from each code."""
        return 1 << (self.bits - 1)

    @property
    def is_shifted(self) -> bool:
        """Whether a product with the centred codes needs a correction for each block."""
        return self.has_mins or self.zero != self.centre

    def nbytes(self, elements: int) -> int:
        return elements * self.bits // 8 + 4 * elements // self.block * (1 + self.is_shifted)


# Zeros of types with mins are chosen so that centred codes are about as often below 0 as above. Errors of rounded
# activations then mostly cancel out. Mins are multiplied with activations that were not rounded.
ENCODINGS = {
    DType.Q4_0: PackedEncoding(4, 32, 8),
    DType.Q4_1: PackedEncoding(4, 32, 0, has_mins=True),
    DType.Q5_0: PackedEncoding(8, 32, 128),
    DType.Q5_1: PackedEncoding(8, 32, 112, has_mins=True),
    DType.Q8_0: PackedEncoding(8, 32, 128),
    DType.Q2_K: PackedEncoding(4, 16, 6, has_mins=True),
    DType.Q3_K: PackedEncoding(4, 16, 8),
    DType.Q4_K: PackedEncoding(4, 32, 0, has_mins=True),
    DType.Q5_K: PackedEncoding(8, 32, 112, has_mins=True),
    DType.Q6_K: PackedEncoding(8, 16, 128),
    DType.MXFP4: PackedEncoding(8, 32, 128),
    DType.IQ4_NL: PackedEncoding(8, 32, 128),
}

Unpacked = tuple[NDArray[np.int16], Floats, Floats | None]
"""Integers (blocks of the file, blocks, elements), scales and mins (blocks of the file, blocks)."""


def empty_bytes(nbytes: int) -> Bytes:
    return np.empty(nbytes, np.uint8)


class PackedWeight:
    """A weight's codes, scales and mins; all other parts are computed from them."""

    def __init__(
        self, dtype: DType, data: Bytes, elements: int, empty: Callable[[int], Bytes] = empty_bytes
    ) -> None:
        self.encoding = encoding = ENCODINGS[dtype]
        blocks, width = elements // encoding.block, encoding.block * encoding.bits // 8
        self.codes: Bytes = empty(blocks * width).reshape(blocks, width)
        self.scales: Floats = empty(4 * blocks).view(np.float32)
        self.mins: Floats | None = empty(4 * blocks).view(np.float32) if encoding.has_mins else None
        raw, per = data.reshape(-1, dtype.type_size), dtype.block_size // encoding.block
        step = max(CHUNK // dtype.block_size, 1)
        for low in range(0, len(raw), step):
            numbers, scales, mins = UNPACK[dtype](raw[low : low + step])
            to = slice(low * per, (low + len(numbers)) * per)
            codes = (numbers + encoding.zero).astype(np.uint8).reshape(-1, encoding.block)
            self.codes[to] = self._halves(codes) if encoding.bits == 4 else codes
            self.scales[to] = scales.reshape(-1)
            if self.mins is not None and mins is not None:
                self.mins[to] = mins.reshape(-1)

    @cached_property
    def shift(self) -> Floats:
        """The correction of each block: an element is (code - centre) * scale + shift."""
        shift = (self.encoding.centre - self.encoding.zero) * self.scales
        return shift if self.mins is None else shift - self.mins

    @cached_property
    def high(self) -> Bytes:
        """The upper halves of 8-bit codes, two to a byte: centred they are -8 to 7."""
        return self._halves(self.codes >> 4)

    @cached_property
    def low(self) -> Bytes:
        """The lower halves, 0 to 15."""
        return self._halves(self.codes & 15)

    @cached_property
    def high_scales(self) -> Floats:
        return 16 * self.scales

    def part(self, name: str) -> Bytes:
        part: NDArray[Any] = getattr(self, name)
        return part.reshape(-1).view(np.uint8)

    @staticmethod
    def _halves(codes: NDArray[Any]) -> Bytes:
        halves: Bytes = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8, copy=False)
        return halves


# -- the blocks of the file ---------------------------------------------------------------------


def _half(raw: Bytes, at: int) -> Floats:
    """A float16 of each block, (n, 1)."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _shifted(raw: Bytes, group: int, shifts: list[int], mask: int) -> NDArray[np.int16]:
    """For each group of bytes: the masked bits of all its bytes at the first shift, then at the next."""
    parts = raw.reshape(len(raw), -1, 1, group) >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    numbers: NDArray[np.int16] = (parts & np.uint8(mask)).astype(np.int16).reshape(len(raw), -1)
    return numbers


def _nibbles(raw: Bytes, group: int = 16) -> NDArray[np.int16]:
    return _shifted(raw, group, [0, 4], 15)


def _fifth_bits(raw: Bytes) -> NDArray[np.int16]:
    """Bit i of four bytes for element i, as 16."""
    bits = np.unpackbits(raw, axis=1, bitorder="little")
    high: NDArray[np.int16] = bits.astype(np.int16) << 4
    return high


def _q4_0(raw: Bytes) -> Unpacked:
    return _nibbles(raw[:, 2:]) - 8, _half(raw, 0), None


def _q4_1(raw: Bytes) -> Unpacked:
    return _nibbles(raw[:, 4:]), _half(raw, 0), -_half(raw, 2)


def _q5_0(raw: Bytes) -> Unpacked:
    return (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])) - 16, _half(raw, 0), None


def _q5_1(raw: Bytes) -> Unpacked:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _half(raw, 0), -_half(raw, 2)


def _q8_0(raw: Bytes) -> Unpacked:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.int16), _half(raw, 0), None


def _q2_k(raw: Bytes) -> Unpacked:
    scales = raw[:, :16]
    numbers = _shifted(raw[:, 16:80], 32, [0, 2, 4, 6], 3)
    return (
        numbers, _half(raw, 80) * (scales & 15).astype(np.float32), _half(raw, 82) * (scales >> 4).astype(np.float32)
    )  # fmt: skip


def _q3_k(raw: Bytes) -> Unpacked:
    low = _shifted(raw[:, 32:96], 32, [0, 2, 4, 6], 3)
    absent = 1 - _shifted(raw[:, :32], 32, list(range(8)), 1)  # a bit that is not set subtracts 4
    nibbles = _shifted(raw[:, 96:104], 8, [0, 4], 15)
    scales = (nibbles | (_shifted(raw[:, 104:108], 4, [0, 2, 4, 6], 3) << 4)) - 32
    return low - 4 * absent, _half(raw, 108) * scales.astype(np.float32), None


def _six_bit_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """The eight scales and mins that Q4_K and Q5_K pack into twelve bytes."""
    d, m, both = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate([d & 0x3F, (both & 0x0F) | ((d >> 2) & 0x30)], axis=1)
    mins = np.concatenate([m & 0x3F, (both >> 4) | ((m >> 2) & 0x30)], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _q4_k(raw: Bytes) -> Unpacked:
    scales, mins = _six_bit_scales(raw[:, 4:16])
    return _nibbles(raw[:, 16:], 32), _half(raw, 0) * scales, _half(raw, 2) * mins


def _q5_k(raw: Bytes) -> Unpacked:
    scales, mins = _six_bit_scales(raw[:, 4:16])
    numbers = _nibbles(raw[:, 48:], 32) | (_shifted(raw[:, 16:48], 32, list(range(8)), 1) << 4)
    return numbers, _half(raw, 0) * scales, _half(raw, 2) * mins


def _q6_k(raw: Bytes) -> Unpacked:
    numbers = _shifted(raw[:, :128], 64, [0, 4], 15) | (_shifted(raw[:, 128:192], 32, [0, 2, 4, 6], 3) << 4)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return numbers - 32, _half(raw, 208) * scales, None


_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)


def _mxfp4(raw: Bytes) -> Unpacked:
    exponent = raw[:, :1].astype(np.uint32)
    bits = np.where(
        exponent < 2, np.uint32(0x00200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23)
    )
    return _E2M1_DOUBLED[_nibbles(raw[:, 1:])], bits.view(np.float32), None


def _iq4_nl(raw: Bytes) -> Unpacked:
    return _IQ4[_nibbles(raw[:, 2:])], _half(raw, 0), None


UNPACK: dict[DType, Callable[[Bytes], Unpacked]] = {
    DType.Q4_0: _q4_0, DType.Q4_1: _q4_1, DType.Q5_0: _q5_0, DType.Q5_1: _q5_1, DType.Q8_0: _q8_0,
    DType.Q2_K: _q2_k, DType.Q3_K: _q3_k, DType.Q4_K: _q4_k, DType.Q5_K: _q5_k, DType.Q6_K: _q6_k,
    DType.MXFP4: _mxfp4, DType.IQ4_NL: _iq4_nl,
}  # fmt: skip
