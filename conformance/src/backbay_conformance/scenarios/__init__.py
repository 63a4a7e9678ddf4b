"""The scenarios, tests beyond single calls: graphs, machines, memory, misuse; importing this package declares them."""

from . import blocks as blocks
from . import cancellation as cancellation
from . import experts as experts
from . import graphs as graphs
from . import halves as halves
from . import invariance as invariance
from . import leaves as leaves
from . import long as long
from . import machines as machines
from . import memory as memory
from . import misuse as misuse
from . import plans as plans
from . import process as process
from . import profiling as profiling
from . import settings as settings
from . import threads as threads
from . import weights as weights
