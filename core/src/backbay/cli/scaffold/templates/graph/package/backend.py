"""The class of the backend. Core does the rest: memory, weights, views, and plans that are kept by their shapes."""

from backbay.plugin import GraphBackend

from .engine import ENGINE
from .kernels import kernel


class MyBackend(GraphBackend):
    """Whole graphs, compiled by the engine.

    These hooks may be overridden, too: `devices`, `precision` (which holds the tests to f32 by default), `options`,
    `cache_config` and `diagnose`.
    """

    contract_version = "CONTRACT"
    kernels = kernel
    engine = ENGINE
