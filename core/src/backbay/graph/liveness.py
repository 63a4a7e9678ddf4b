"""Which results of a graph may share memory, because they are never needed at one time."""

from __future__ import annotations

from .graph import Graph


def assign_slots(graph: Graph) -> tuple[dict[int, int], list[int]]:
    """The slot of every node that holds data of its own, and the bytes of every slot."""
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
    """For each node, those whose data nobody needs after it. Outputs are needed for ever."""
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
    """The tightest free slot, else the largest one, grown, else a new one."""
    if not free:
        sizes.append(nbytes)
        return len(sizes) - 1
    fitting = [slot for slot in free if sizes[slot] >= nbytes]
    slot = min(fitting, key=sizes.__getitem__) if fitting else max(free, key=sizes.__getitem__)
    free.remove(slot)
    sizes[slot] = max(sizes[slot], nbytes)
    return slot
