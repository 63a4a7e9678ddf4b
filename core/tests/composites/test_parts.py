"""A backend says yes to a composite only if it has, or core composes, all that the composite is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from environment import GOOD, Environment

import backbay
from backbay import OPS, DType, KernelBackend, KernelTable, Level, Op, Spec, Support, UnsupportedOpError, ops
from backbay.composites.graph_builder import composite_parts, level_by_kernels
from backbay.types.backend_declarations import KERNEL, unsupported

F32 = Spec(DType.F32, (4, 3))


def with_kernels(*listed: Op[Any, Any]) -> KernelBackend:
    """A backend that has these kernels, and runs none of them."""
    table = {op: lambda *operands, **attributes: None for op in listed}
    return type("Few", (KernelBackend,), {"contract_version": 1, "kernels": table})()


def operand(op: Op[Any, Any], i: int) -> Any:
    spec = Spec(DType.I32 if i == op.ids else DType.F32, (1,))
    if op.parameters[i].is_optional:
        return None
    return (spec,) if op.parameters[i].variadic else spec


def test_a_composite_without_one_of_its_parts_is_refused_with_the_part() -> None:
    with with_kernels(ops.mulmat, ops.add, ops.mul) as backend:
        support = backend.supports(ops.silu, [F32, None])
        assert support.level is Level.NONE
        assert support.reason == "its composite needs sigmoid, which has no kernel"
        gated = backend.supports(ops.silu, [F32, F32])
        assert gated.reason == "its composite needs silu: its composite needs sigmoid, which has no kernel"
    with with_kernels(ops.mul, ops.sigmoid) as backend:
        assert backend.supports(ops.silu, [F32, F32]).level is Level.COMPOSITE


def test_the_error_names_what_was_traced_and_what_is_missing() -> None:
    with with_kernels(ops.mul) as backend, backend.new_context() as ctx:
        y = ctx.zeros(DType.F32, 4).silu(ctx)
        wanted = r"cannot run silu: f32\[4\]: its composite needs sigmoid, which has no kernel$"
        with pytest.raises(UnsupportedOpError, match=wanted):
            ctx.compute(y)


@pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.composite is not None], ids=lambda op: op.name
)
def test_a_composite_is_complete_with_the_parts_that_it_is_said_to_have(op: Op[Any, Any]) -> None:
    specs = [operand(op, i) for i in op.operands]
    needed = {part for part, _ in composite_parts(op, specs)}
    unknown = op.varies or op in (ops.chunk, ops.chunk_sections)  # the last two are made of views
    assert bool(needed) is not unknown

    def complete(*without: Op[Any, Any]) -> Support:
        listed = set(OPS.values()) - {op, *without}
        with with_kernels(*listed) as backend:
            return backend.supports(op, specs)

    assert complete().level is Level.COMPOSITE
    for part in needed:
        if part.composite is None:
            assert complete(part).reason == f"its composite needs {part.name}, which has no kernel"


def test_parts_are_found_for_the_operands_at_hand() -> None:
    half = Spec(DType.F16, (4, 3))
    assert ops.cast not in {part for part, _ in composite_parts(ops.silu, [F32, None])}
    casts = [(part, given) for part, given in composite_parts(ops.silu, [half, None]) if part is ops.cast]
    assert [(part, given[0].dtype) for part, given in casts if given[0]] == [
        (ops.cast, DType.F16),
        (ops.cast, DType.F32),
    ]
    view = Spec(DType.F32, (4, 3), (4, 64), 32)  # a view of something larger
    (copied,) = composite_parts(ops.duplicate, [view])
    assert copied[0] is ops.contiguous
    assert copied[1][0] is not None
    assert (copied[1][0].strides, copied[1][0].offset) == (view.strides, view.offset)
    (written,) = composite_parts(ops.set, [view, Spec(DType.F32, (4,))])
    assert written[0] is ops.copy


def test_what_a_plugin_refuses_on_these_operands_is_told_with_its_reason() -> None:
    class NoHalves(KernelBackend):
        contract_version = 1
        kernels = KernelTable()

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            if op is ops.sigmoid:
                refused = any(spec is not None and spec.dim(1) > 2 for spec in specs)
                return unsupported("it takes two rows at most") if refused else KERNEL
            return KERNEL if op is ops.mul else super().supports(op, specs)

    with NoHalves() as backend:
        assert backend.supports(ops.silu, [F32, None]).reason == (
            "its composite needs sigmoid: it takes two rows at most"
        )
        assert backend.supports(ops.silu, [Spec(DType.F32, (4, 2)), None]).level is Level.COMPOSITE


@pytest.mark.parametrize(
    "specs", [[], [F32, Spec(DType.F32, (5, 3))], [Spec(DType.I32, (4,)), None]], ids=str
)
def test_operands_that_do_not_go_together_leave_it_open(specs: list[Spec | None]) -> None:
    with with_kernels() as backend:
        assert backend.supports(ops.silu, specs).level is Level.COMPOSITE


def test_attributes_that_may_leave_parts_out_leave_it_open() -> None:
    with with_kernels(ops.contiguous) as backend, backend.new_context() as ctx:
        x = Spec(DType.F32, (4,))
        assert backend.supports(ops.repeat_4d, [x]).level is Level.COMPOSITE
        with pytest.raises(UnsupportedOpError, match="cannot run repeat: "):
            ctx.compute(ctx.zeros(DType.F32, 4).repeat_4d(ctx, 8))


def test_asking_leaves_the_operands_as_they_were(backend: backbay.Backend) -> None:
    kind = type("Without", (type(backend),), {"kernels": {}})
    with kind() as bare, bare.new_context() as ctx:
        x, ids = ctx.zeros(DType.F32, 4, 3), ctx.empty(DType.I32, 2)
        before = (ctx.counters.traced_nodes, bare.memory().cpu.graph.size)
        bare.supports(ops.set, [x, ctx.zeros(DType.F32, 4)])
        bare.supports(ops.add_id, [x, x, ids])
        assert x.leaf is not None
        assert ids.leaf is not None
        assert not x.leaf.computed
        assert not ids.leaf.id_uses
        assert before[0] == ctx.counters.traced_nodes
        assert bare.counters.traced_nodes == 0


def test_the_table_of_ops_tells_it_too(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    done = environment.backbay("ops", "--backend", "good")
    rows = {line.split()[1].partition("(")[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert rows["silu"] == "unsupported"
    assert rows["sqr"] == "unsupported"
    assert rows["repeat_4d"] == "composite"
    assert level_by_kernels(ops.sqr, {ops.mul}).level is Level.COMPOSITE
