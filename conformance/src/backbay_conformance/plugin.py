"""The public names for authors of scenarios, machines and cases.

All other modules are private, and may move in any release. docs/conformance.md shows how the names are used.
"""

from __future__ import annotations

from .draw.data import Bits, Distinct, Fill, Integers, Made, Making, Mode, Numbers
from .draw.draw import Draw
from .draw.operand import Operand
from .machines.cost import attention_cost
from .machines.history import Cell, History, attend, number, require_close, rotated, stored
from .machines.machine import Choose, Failure, Machine, action, run_machine, state_machine, walk
from .numbers.comparison import Fault
from .numbers.number import Cost, Number, concatenate, scalar
from .suite.case import Call, Case, case
from .suite.lab import Lab, lab_for
from .suite.model_steps import model_steps
from .suite.scenario import Scenario, scenario

__all__ = [
    "Bits",
    "Call",
    "Case",
    "Cell",
    "Choose",
    "Cost",
    "Distinct",
    "Draw",
    "Failure",
    "Fault",
    "Fill",
    "History",
    "Integers",
    "Lab",
    "Machine",
    "Made",
    "Making",
    "Mode",
    "Number",
    "Numbers",
    "Operand",
    "Scenario",
    "action",
    "attend",
    "attention_cost",
    "case",
    "concatenate",
    "lab_for",
    "model_steps",
    "number",
    "require_close",
    "rotated",
    "run_machine",
    "scalar",
    "scenario",
    "state_machine",
    "stored",
    "walk",
]
