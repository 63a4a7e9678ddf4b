"""Decoders that are mixtures of experts by design, with their own routing or attention."""
