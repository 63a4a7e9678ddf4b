"""DTypes agree with the gguf package, number by number."""

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from backbay import DType


@pytest.mark.parametrize("theirs", list(GGMLQuantizationType), ids=lambda t: t.name)
def test_every_type_of_gguf_has_its_number_and_block(theirs):
    ours = DType[theirs.name]
    assert ours == theirs.value
    assert (ours.block_size, ours.type_size) == GGML_QUANT_SIZES[theirs]


def test_what_ops_take_is_told_apart():
    assert [d.name for d in DType if d.is_float] == ["F32", "F16", "BF16"]
    assert [d.name for d in DType if d.is_integer] == ["I32", "I64"]
    assert DType.Q4_0.is_quantized and not DType.F64.is_quantized
    assert str(DType.Q4_K) == "q4_k"
    assert DType.Q4_0.row_size(64) == 36


def test_every_dtype_is_true_so_that_none_alone_is_absent():
    assert all(DType)
    assert (DType.F32 or DType.F16) is DType.F32
