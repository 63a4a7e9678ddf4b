"""The architectures that use each op, by the tables that installed packages declare."""

from __future__ import annotations

import logging
from typing import Any

from backbay.discovery.entry_points import declared
from backbay.ops.declaration import Op

log = logging.getLogger(__name__)
GROUP = "backbay.op_users"
"""The entry-point group of tables: the names of architectures by that of an op."""
SHOWN = 12  # architectures by name


def op_users() -> dict[str, list[str]]:
    """The architectures by op, of all tables; a package that cannot be imported has none."""
    found: dict[str, set[str]] = {}
    for points in declared(GROUP).values():
        for point in points:
            try:
                table = dict(point.load())
            except Exception as error:  # noqa: BLE001  another package's module
                log.warning("%s of %s cannot be read: %s", GROUP, point.origin, error)
                continue
            for op, names in table.items():
                found.setdefault(op, set()).update(names)
    return {op: sorted(names) for op, names in found.items()}


def users_of(op: Op[Any, Any], users: dict[str, list[str]]) -> str:
    """Who uses an op, in a line."""
    names, every = users.get(op.name, []), {name for others in users.values() for name in others}
    if not names:
        return "no architecture"
    if len(names) == len(every):
        return f"all {len(every)} architectures"
    return ", ".join(names) if len(names) <= SHOWN else f"{len(names)} of {len(every)} architectures"
