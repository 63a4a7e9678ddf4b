"""Checks of one call: its result, its relations to other calls, and which op of a graph is to blame."""
