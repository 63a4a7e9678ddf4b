"""Backends that are a table of kernels: run by core over NumPy arrays, or traced to a graph of an engine's own."""
