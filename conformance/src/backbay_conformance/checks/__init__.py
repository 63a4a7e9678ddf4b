"""Checks of one call: its result, its relations to other calls, and the ops that make a graph wrong."""
