"""The outcome of one item."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..numbers.tightness import Shares


@dataclass
class Outcome:
    """The result of one item: `status` is passed, failed or unsupported.

    check     the check that failed: bound, exact, bits, repeat, replay, inputs, storage, guards, raised,
              over-claimed, under-claimed, crash, hang, or the name of a relation
    ratio     the largest error / bound, if results were compared with a bound
    tight     by check: the compared elements whose bound is finite and tight, and all compared elements
    choices   the drawn choices; with item and seed they give the same call again
    """

    item: str
    status: str = "passed"
    dtype: str = ""
    level: str = ""
    mode: str = ""
    precision: str = ""
    check: str = ""
    message: str = ""
    call: str = ""
    kind: str = ""  # op, dtypes, layouts and size classes, if the run imitates a model
    elements: int = 0  # of all operands of a case's call
    ratio: float | None = None
    seconds: float = 0.0
    choices: list[int] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    tight: Shares = field(default_factory=dict)
    script: str = ""
    trace: str = ""  # the traceback of an error of the backend
    packed: bool = False  # the program holds data that nobody can read
    count: int = 1  # the number of similar failures, of which only one is shown

    @property
    def profile(self) -> str:
        return self.item.split("/")[0]

    @property
    def name(self) -> str:
        return self.item.split("/")[1]

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    def as_dict(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in asdict(self).items()
            if key != "trace" and value not in ("", None, [], {}, 0)
        }
