"""Custom ops of native code in sessions of a few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from backbay_onnx.session.native import DOMAIN
from backbay_onnx.session.runtime import load_runtime


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """A custom op."""
    return helper.make_node(op, inputs, [output], domain=DOMAIN, **attributes)


def run(path: Path, nodes: Sequence[NodeProto], given: Mapping[str, np.ndarray], wanted: str) -> np.ndarray:
    """A value of a model of these nodes."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(wanted, 1, None)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "ops", inputs, outputs)
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    ort = load_runtime()
    options: Any = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    options.register_custom_ops_library(str(path))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    [found] = session.run([wanted], dict(given))
    return found
