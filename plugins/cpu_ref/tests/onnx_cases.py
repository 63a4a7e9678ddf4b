"""ONNX's tests of single ops."""

import warnings
from importlib import import_module

import pytest

pytest.importorskip("onnx")
node = pytest.importorskip("onnx.backend.test.case.node")


def cases_of(*ops):
    """The cases of these ops; `collect_testcases` makes those of all ops, which takes five seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose
        for op in ops:
            import_module(f"{node.__name__}.{op.lower()}")
    return [case for case in node._NodeTestCases if case.model.graph.node[0].op_type in ops]
