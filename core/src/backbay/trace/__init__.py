"""Contexts and tensors: calls on tensors become a recorded graph."""
