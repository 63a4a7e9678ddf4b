"""Native products for each kind of processor."""

from __future__ import annotations

import pytest

from backbay_native import PRODUCTS


@pytest.fixture(
    scope="module",
    params=[
        "native_code",
        "native_code_without_vnni",
        "native_code_without_avx512",
        "native_code_with_avx_vnni",
        "native_code_with_tiles",
        pytest.param("emulated_code_without_vnni", marks=pytest.mark.thorough),
        pytest.param("emulated_code_with_vnni", marks=pytest.mark.thorough),
    ],
)
def native(request):
    """Code for this processor, for one without VNNI, for one without AVX-512, for one with VNNI for AVX2's vectors, and for one
    with AMX, also where this processor lacks AVX-512; and its formats.
    """
    code = request.getfixturevalue(request.param)
    if not code.instructions(PRODUCTS):
        pytest.skip("no code for this processor")
    return code, code.untried_formats(tiles=request.param == "native_code_with_tiles")
