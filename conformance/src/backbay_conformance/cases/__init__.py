"""The cases, a module per family of ops, and the scenarios."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "backbay_conformance.cases.elementwise",
    "backbay_conformance.cases.binary",
    "backbay_conformance.cases.matrix",
    "backbay_conformance.cases.norm",
    "backbay_conformance.cases.shape",
    "backbay_conformance.cases.write",
    "backbay_conformance.cases.spatial",
    "backbay_conformance.cases.linear",
    "backbay_conformance.cases.sequence",
    "backbay_conformance.cases.attention",
    "backbay_conformance.scenarios.graphs",
    "backbay_conformance.scenarios.leaves",
    "backbay_conformance.scenarios.weights",
    "backbay_conformance.scenarios.blocks",
    "backbay_conformance.scenarios.halves",
    "backbay_conformance.scenarios.composites",
    "backbay_conformance.scenarios.memory",
    "backbay_conformance.scenarios.misuse",
    "backbay_conformance.scenarios.threads",
    "backbay_conformance.scenarios.settings",
    "backbay_conformance.scenarios.long",
    "backbay_conformance.scenarios.lives",
)


def load() -> None:
    """Import them all, which fills the tables."""
    for module in MODULES:
        import_module(module)
