"""Scenarios for the conformance suite: the engine's caches on a backend, and the steps of its models."""

from . import causal_cache, latent_attention, model_steps, picture_cache, recurrent_rules, seeing

__all__ = ["causal_cache", "latent_attention", "model_steps", "picture_cache", "recurrent_rules", "seeing"]
