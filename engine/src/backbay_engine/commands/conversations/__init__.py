"""Conversations of `backbay run`: printed while answers grow, and kept from one run to the next."""
