"""Scenarios for the conformance suite: the engine's caches on a backend."""
