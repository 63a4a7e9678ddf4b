"""Liveness analysis: results of a graph that are never needed at the same time can share memory."""

from __future__ import annotations

from .graph import Graph


def assign_slots(graph: Graph) -> tuple[dict[int, int], list[int]]:
    """The slot of each node that has its own data, and the bytes of each slot; nodes in one slot share memory."""
    last = last_uses(graph)
    slots: dict[int, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    for node in graph.nodes:
        if node.op is not None and not node.is_view:
            slots[node.index] = _take(free, sizes, node.nbytes)
        free.extend(slots[done] for done in last.get(node.index, ()))
    return slots, sizes


def last_uses(graph: Graph) -> dict[int, list[int]]:
    """For each node, the nodes whose data are last used by it. Outputs stay in use for ever."""
    kept = {node.storage.index for node in graph.outputs}
    last: dict[int, int] = {}
    for node in graph.nodes:
        for used in (node, *node.operands):
            if used.storage.op is not None and used.storage.index not in kept:
                last[used.storage.index] = node.index
    ends: dict[int, list[int]] = {}
    for index, end in last.items():
        ends.setdefault(end, []).append(index)
    return ends


def _take(free: list[int], sizes: list[int], nbytes: int) -> int:
    """Take the smallest free slot that fits; if none fits, enlarge the largest; if none is free, add a slot."""
    if not free:
        sizes.append(nbytes)
        return len(sizes) - 1
    fitting = [slot for slot in free if sizes[slot] >= nbytes]
    slot = min(fitting, key=sizes.__getitem__) if fitting else max(free, key=sizes.__getitem__)
    free.remove(slot)
    sizes[slot] = max(sizes[slot], nbytes)
    return slot
