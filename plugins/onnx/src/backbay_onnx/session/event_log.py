"""The events of a session: when it ran, and the time of each of its nodes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from .runtime import translated

RUN, NODE, KERNEL = "model_run", "Node", "_kernel_time"  # names and categories of ONNX Runtime's


@dataclass(frozen=True)
class NodeTime:
    name: str
    provider: str
    seconds: float


@final
class EventLog:
    """What a session writes about its runs, if its options say so. Asking for the times ends it."""

    def __init__(self, options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="backbay-profile-", ignore_cleanup_errors=True)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "events")
        self._runs: list[list[NodeTime]] | None = None
        self._counted = 0

    @property
    def is_over(self) -> bool:
        """Whether the times were asked for: ONNX Runtime then logs no more runs of the session."""
        return self._runs is not None

    def count_run(self) -> int:
        self._counted += 1
        return self._counted - 1

    def times(self, session: Any, run: int) -> list[NodeTime]:
        """The times of the nodes of one run, which do not overlap."""
        if self._runs is None:
            with translated("ending a profile"):
                self._runs = list(_runs(json.loads(Path(session.end_profiling()).read_text("utf-8"))))
            self._folder.cleanup()
        return self._runs[run]


def _runs(events: list[dict[str, Any]]) -> Iterator[list[NodeTime]]:
    """The nodes of each run, in order; those of a loop's body are part of the loop."""
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == RUN)
    nodes = sorted(
        (event for event in events if event["cat"] == NODE and event["name"].endswith(KERNEL)),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    for begin, end in runs:
        yield list(_outer([event for event in nodes if begin <= event["ts"] <= end]))


def _outer(nodes: list[dict[str, Any]]) -> Iterator[NodeTime]:
    end = 0
    for event in nodes:
        if event["ts"] + event["dur"] > end:
            end = event["ts"] + event["dur"]
            name = event["name"].removesuffix(KERNEL)
            yield NodeTime(name, event["args"].get("provider", ""), event["dur"] / 1e6)
