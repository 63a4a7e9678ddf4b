"""The public names for authors of scenarios, machines and cases.

All other modules are private, and may move in any release. docs/conformance.md shows how the names are used.
"""

from __future__ import annotations

from .draw.data import Bits as Bits
from .draw.data import ComputedNumbers as ComputedNumbers
from .draw.data import DistinctIds as DistinctIds
from .draw.data import Fill as Fill
from .draw.data import FillContext as FillContext
from .draw.data import Integers as Integers
from .draw.data import Mode as Mode
from .draw.data import Numbers as Numbers
from .draw.draw import Draw as Draw
from .draw.operand import Operand as Operand
from .fault import Fault as Fault
from .machines.machine import ChoiceSource as ChoiceSource
from .machines.machine import Failure as Failure
from .machines.machine import Machine as Machine
from .machines.machine import action as action
from .machines.machine import run_machine as run_machine
from .machines.machine import walk as walk
from .machines.token_history import Cell as Cell
from .machines.token_history import TokenHistory as TokenHistory
from .machines.token_history import attend as attend
from .machines.token_history import attention_cost as attention_cost
from .machines.token_history import number as number
from .machines.token_history import require_close as require_close
from .machines.token_history import rotated as rotated
from .machines.token_history import stored as stored
from .numbers.number import Cost as Cost
from .numbers.number import Number as Number
from .numbers.number import concatenate as concatenate
from .numbers.number import scalar as scalar
from .suite.case import Call as Call
from .suite.case import Case as Case
from .suite.case import case as case
from .suite.extensions import model_steps as model_steps
from .suite.lab import Lab as Lab
from .suite.lab import Scenario as Scenario
from .suite.lab import lab_for as lab_for
from .suite.lab import scenario as scenario
