"""Checks of one call: its result, its relations to other calls, and the ops to blame for a wrong graph."""
