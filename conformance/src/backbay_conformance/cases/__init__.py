"""The cases, one module for each family of ops; importing this package declares them all."""

from . import attention as attention
from . import delta_rule as delta_rule
from . import elementwise as elementwise
from . import index as index
from . import matrix as matrix
from . import norm as norm
from . import order as order
from . import sequence as sequence
from . import shape as shape
from . import spatial as spatial
from . import write as write
