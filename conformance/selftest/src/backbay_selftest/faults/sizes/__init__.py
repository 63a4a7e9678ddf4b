"""Sizes at which a kernel goes wrong: none, odd, long, those of models, and the ends of ranges."""
