"""`backbay.kernels` keeps the contract over NumPy's arrays, which stand for those of any engine."""

from __future__ import annotations

import math

import numpy as np

from backbay.kernels import array_kernels, count_temporaries
from backbay.plugin import ArrayEngine, GraphBackend, decode, encode
from backbay_conformance import run


class Engine(ArrayEngine):
    xp = np

    def to_engine(self, data, dtype):
        data.flags.writeable = False  # a kernel that writes in place fails
        return data

    def to_host(self, storage):
        return storage

    def numbers(self, stored, dtype):
        return decode(stored, dtype).astype(np.float32)

    def stored(self, numbers, dtype):
        return encode(numbers, dtype)


def solve_triangular(a, b, lower, unit_diagonal):
    a = np.tril(a, -unit_diagonal) if lower else np.triu(a, unit_diagonal)
    return np.linalg.solve((a + unit_diagonal * np.eye(a.shape[-1])).astype(np.float64), b)


class Arrays(GraphBackend):
    contract_version = "1.2"
    engine = Engine()
    kernels = array_kernels(
        np, erfc=np.vectorize(math.erfc, otypes=[np.float32]), solve_triangular=solve_triangular
    )

    def working_memory(self, node):
        return super().working_memory(node) + 4 * count_temporaries(node)


def test_kernels_over_any_arrays_keep_the_contract() -> None:
    report = run(Arrays, ["core", "cache"], size="tiny")
    assert not report.failures, report.failures[0].message
    assert report.ok


def test_what_the_standard_lacks_is_unsupported_unless_it_is_passed() -> None:
    missing = {op.name for op in {*Arrays.kernels} - {*array_kernels(np)}}
    assert missing == {"gelu_erf"}
