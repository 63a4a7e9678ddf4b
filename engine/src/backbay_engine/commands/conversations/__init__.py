"""Conversations of `backbay run` that last from one run to the next."""
