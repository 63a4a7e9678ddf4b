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

from .draw.draw import Draw as Draw
from .draw.operand import Operand as Operand
from .fault import Fault as Fault
from .kernels.bound import Bound as Bound
from .kernels.bound import bound as bound
from .kernels.check import check_kernel as check_kernel
from .kernels.host_array import HostArray as HostArray
from .numbers.number import Number as Number
from .report.report import Outcome as Outcome
from .report.report import Report as Report
from .runner.run import run as run
from .runner.selection import SelectionError as SelectionError
from .suite.case import CASES as CASES
from .suite.case import Call as Call
from .suite.case import Case as Case
from .suite.case import case as case
from .suite.lab import SCENARIOS as SCENARIOS
from .suite.lab import Lab as Lab
from .suite.lab import Scenario as Scenario
from .suite.lab import lab_for as lab_for
from .suite.lab import scenario as scenario
from .suite.profiles import PROFILES as PROFILES
from .suite.profiles import SUITE_VERSION as SUITE_VERSION
