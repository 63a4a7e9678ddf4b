"""Graphs in files, for tests: ONNX models, programs as torch.export saves them (without PyTorch), and their calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from backbay_conformance import lab_for
from backbay_conformance.workloads.model_calls import ModelCallCounts, read_model_calls

Shape = Sequence[int | str]
DTYPES = {"f32": 7, "f16": 6, "i64": 5, "bool": 12}  # torch's numbers


def onnx_model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    version: int = 21,
    dtypes: Mapping[str, int] | None = None,
) -> Any:
    """A model of f32 inputs, unless `dtypes` has another for one."""
    from onnx import TensorProto, helper, numpy_helper

    kinds = dict(dtypes or {})
    declared = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
        for name, shape in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    weights = [numpy_helper.from_array(np.asarray(data), name) for name, data in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", declared, results, initializer=weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def meta(shape: Sequence[int], dtype: str = "f32") -> dict[str, Any]:
    """The description of a value; a negative extent is a dynamic one, of this size when the program was exported."""
    sizes = [
        {"as_int": n} if n >= 0 else {"as_expr": {"expr_str": "s", "hint": {"as_int": -n}}} for n in shape
    ]
    return {"dtype": DTYPES[dtype], "sizes": sizes}


def torch_node(op: str, args: Sequence[Any], results: Sequence[str], **named: Any) -> dict[str, Any]:
    """A node; a text among its arguments is the name of a value."""

    def argument(value: Any) -> dict[str, Any]:
        if value is None:
            return {"as_none": True}
        if isinstance(value, str):
            return {"as_tensor": {"name": value}}
        if isinstance(value, list):
            text = bool(value) and isinstance(value[0], str)
            return {"as_tensors": [{"name": name} for name in value]} if text else {"as_ints": value}
        return {f"as_{type(value).__name__}": value}

    inputs = [{"name": "", "arg": argument(value), "kind": 1} for value in args]
    inputs += [{"name": name, "arg": argument(value), "kind": 2} for name, value in named.items()]
    made = [{"as_tensor": {"name": name}} for name in results]
    outputs = made if len(made) == 1 else [{"as_tensors": [{"name": name} for name in results]}]
    return {"target": f"torch.ops.aten.{op}", "inputs": inputs, "outputs": outputs}


def write_program(
    path: Path,
    nodes: Sequence[Any],
    values: Mapping[str, Any],
    specs: Sequence[Any] = (),
    mutated: Sequence[str] = (),
    version: int = 8,
) -> Path:
    """Write a program; `specs` are the pairs of kind and name of its parameters and buffers."""
    named = {"parameter": "parameter_name", "buffer": "buffer_name"}
    inputs = [{kind: {"arg": {"name": name}, named[kind]: name}} for kind, name in specs]
    outputs = [{"buffer_mutation": {"arg": {"name": name}, "buffer_name": name}} for name in mutated]
    graph = {"nodes": list(nodes), "tensor_values": dict(values), "sym_int_values": {"s": {"as_int": 3}}}
    module = {"graph": graph, "signature": {"input_specs": inputs, "output_specs": outputs}}
    described = {"graph_module": module, "schema_version": {"major": version, "minor": 1}}
    with ZipFile(path, "w") as archive:
        archive.writestr("program/models/model.json", json.dumps(described))
    return path


def calls_in(path: Path) -> tuple[ModelCallCounts, dict[str, list[str]]]:
    """The calls of a model, with the operands of each by op."""
    lab = lab_for("cpu_ref")
    found = read_model_calls(lab, path)
    calls = {op: [", ".join(map(str, one.operands)) for one in made] for op, made in lab.model_calls.items()}
    return found, calls
