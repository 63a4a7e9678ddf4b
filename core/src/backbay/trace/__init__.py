"""Contexts and tensors: calling the methods of tensors records a graph."""
