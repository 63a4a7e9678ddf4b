"""The scenarios, tests beyond single calls: graphs, machines, memory, misuse; importing this package declares them."""

from . import cancellation as cancellation
from . import experts as experts
from . import graphs as graphs
from . import invariance as invariance
from . import large_sizes as large_sizes
from . import leaves as leaves
from . import machines as machines
from . import memory as memory
from . import misuse as misuse
from . import model_blocks as model_blocks
from . import plans as plans
from . import process as process
from . import profiling as profiling
from . import settings as settings
from . import tensor_parts as tensor_parts
from . import threads as threads
from . import weights as weights
