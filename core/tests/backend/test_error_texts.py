"""A message that takes another error's text along says something also where that one says nothing."""

from __future__ import annotations

import pytest

from backbay import Backend, DType, ModelFileError, UnsupportedOpError, ops
from backbay.backend.kernels.kernel_table import decoding_gap, encoding_gap
from backbay.errors import describe_error
from backbay.types.backend_declarations import unsupported

QUANTIZED = [dtype for dtype in DType if dtype.is_quantized]


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_why_a_dtype_cannot_be_converted_ends_in_a_reason(dtype: DType) -> None:
    for gap in (decoding_gap(dtype), encoding_gap(dtype)):
        assert not gap.rstrip().endswith(":")


def test_a_cast_that_cannot_be_says_what_the_converter_raised(backend: Backend) -> None:
    with backend.new_context() as ctx:
        y = ctx.zeros(DType.F32, 256).cast(ctx, DType.Q4_K)
        with pytest.raises(UnsupportedOpError, match=r"to q4_k: NotImplementedError$"):
            ctx.compute(y)


def test_a_refusal_without_a_reason_ends_with_the_operands(backend: Backend) -> None:
    class Silent(type(backend)):  # type: ignore[misc]
        def supports(self, op, specs):  # type: ignore[no-untyped-def]
            return unsupported("") if op is ops.neg else super().supports(op, specs)

    wanted = pytest.raises(UnsupportedOpError, match=r"cannot run neg: f32\[3\]$")
    with Silent() as silent, silent.new_context() as ctx, wanted:
        ctx.compute(ctx.zeros(DType.F32, 3).neg(ctx))


def test_an_error_of_somebody_else_is_described_by_its_class_if_it_says_nothing() -> None:
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(ValueError("too large\nby far")) == "ValueError: too large"


def test_a_message_quotes_long_texts_of_a_file_in_part():
    error = ModelFileError("model.gguf", 12, f"a value for {'k' * 65536}", "none")
    assert len(str(error)) < 1000
    assert str(error).startswith("model.gguf at byte 12: expected a value for kkk")
    assert str(error).endswith("kkk (65548 characters), found none")
    assert error.expected == f"a value for {'k' * 65536}"
