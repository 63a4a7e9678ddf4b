"""A context hands its graph, and the names that its values are to have, to a backend that can write models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import backbay
from backbay import BackbayError, ClosedError, DType
from backbay.graph.graph import Graph


class Writer(backbay.backends()["cpu_ref"].load()):  # type: ignore[misc]
    name = "writer"

    def export(self, graph: Graph, names: Mapping[int, str], folder: Path) -> Path:
        self.told = {name: str(graph.nodes[index]) for index, name in names.items()}
        self.ops = [node.op.name for node in graph.nodes if node.op]
        return folder / "model"


def test_leaves_states_and_results_have_their_names(tmp_path: Path) -> None:
    with backbay.open(None, backend=Writer) as backend, backend.new_context() as ctx:
        x, state, unused = ctx.from_floats([1.0, 2.0]), ctx.zeros(DType.F32, 2), ctx.from_floats([1.0])
        y = x.sqr(ctx)
        z = y.neg(ctx)
        ctx.forward(y.copy(ctx, state), z)
        names: dict[str, Any] = {"x": x, "cache": state, "z": z}
        assert ctx.export(str(tmp_path), names) == tmp_path / "model"
        assert sorted(backend.told) == ["cache", "x", "z"]
        assert backend.ops == ["sqr", "copy", "neg"]
        for wrong in (unused, y):
            with pytest.raises(BackbayError, match="neither a leaf of the graph nor a result"):
                ctx.export(tmp_path, {"wrong": wrong})
        with pytest.raises(BackbayError, match="has a name already"):
            ctx.export(tmp_path, {"x": x, "again": x})
    with pytest.raises(ClosedError):
        ctx.export(tmp_path)


def test_nothing_cannot_be_exported(ctx: Any, tmp_path: Path) -> None:
    with pytest.raises(BackbayError, match="nothing to export"):
        ctx.export(tmp_path)


def test_a_backend_that_cannot_write_models_says_so(ctx: Any, tmp_path: Path) -> None:
    ctx.forward(ctx.from_floats([1.0]).sqr(ctx))
    with pytest.raises(BackbayError, match="'cpu_ref' writes no models"):
        ctx.export(tmp_path)
