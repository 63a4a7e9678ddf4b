"""The scenarios, tests beyond single calls: graphs, machines, memory, misuse; importing this package declares them."""

from . import cancellation as cancellation
from . import graphs as graphs
from . import invariance as invariance
from . import large_sizes as large_sizes
from . import leaves as leaves
from . import machines as machines
from . import memory as memory
from . import misuse as misuse
from . import model_parts as model_parts
from . import plans as plans
from . import process as process
from . import profiling as profiling
from . import settings as settings
from . import threads as threads
from . import weights as weights
