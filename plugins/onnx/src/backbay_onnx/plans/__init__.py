"""Graphs ready to run: sessions by structure, and the memory of one graph bound to them."""
