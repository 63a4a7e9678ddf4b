"""A kernel declares its working memory, or is refused at import."""

from __future__ import annotations

from typing import Any

import pytest

from backbay import BackbayError, ops
from backbay_onnx.ops import KERNELS


def test_a_kernel_without_a_declaration_of_working_memory_is_refused() -> None:
    table = type(KERNELS)()
    with pytest.raises(BackbayError, match=r"neg: .*working_memory"):

        @table(ops.neg)
        def neg(b: Any, x: Any) -> str:
            return ""


def test_every_kernel_has_a_working_memory() -> None:
    assert set(KERNELS.working_memory) == set(KERNELS)
