"""Contexts and tensors: how calls on tensors become a recorded graph."""
