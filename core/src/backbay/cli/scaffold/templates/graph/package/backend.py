"""The class of the backend. Core does the rest: memory, weights, views, and plans that are kept by their shapes."""

from backbay.plugin import GraphBackend

from .engine import ENGINE
from .kernels import kernel


class MyBackend(GraphBackend):
    """Whole graphs on the arrays of an engine.

    These hooks may be overridden, too: `devices`, `precision` (which holds the tests to f32 by default), `options`,
    `cache_config` and `diagnose`. An engine with threads takes their number, `self.params.num_threads`, in `start`: for
    example `torch.set_num_threads`. At import, the number would change the user's other programs.
    """

    contract_version = "CONTRACT"
    kernels = kernel
    engine = ENGINE
