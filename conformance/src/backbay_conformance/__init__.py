"""The conformance suite of backbay: proof that a backend keeps the contract.

    from backbay_conformance import run
    report = run("cpu_ref", profiles=["core"], seed=7, ops=["softmax"], size="smoke")     # or run(MyBackend, ...)
    report.ok, report.counts, report.failures      # a failure is an Outcome: item, check, message, call, choices

`stop_after=1` ends a run at the first failure; `in_process=False` runs each item in a worker process. A case is a
function under `@case(op)` in `cases/`. A scenario is a function `def name(lab, draw)` under `@scenario(profile)` in
`scenarios/`: `lab.backend` is an open backend, `lab.fresh(**BackendParams)` opens another, and a failure is raised as
`Fault(check, message)`. Other distributions import from `plugin` to add scenarios.
"""

from __future__ import annotations

from .draw.draw import Draw
from .draw.operand import Operand
from .numbers.comparison import Fault
from .numbers.number import Number
from .report.outcome import Outcome
from .report.report import Report
from .runner.run import run
from .runner.selection import SelectionError
from .suite.case import CASES, Call, Case, case
from .suite.lab import Lab, lab_for
from .suite.profiles import PROFILES
from .suite.scenario import SCENARIOS, Scenario, scenario
from .suite.version import SUITE_VERSION

__all__ = [
    "CASES",
    "PROFILES",
    "SCENARIOS",
    "SUITE_VERSION",
    "Call",
    "Case",
    "Draw",
    "Fault",
    "Lab",
    "Number",
    "Operand",
    "Outcome",
    "Report",
    "Scenario",
    "SelectionError",
    "case",
    "lab_for",
    "run",
    "scenario",
]
