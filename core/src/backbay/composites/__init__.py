"""Ops composed of other ops: their definitions, the parts that they need, and the builder that opens them in a graph."""
