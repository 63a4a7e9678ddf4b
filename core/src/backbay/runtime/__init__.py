"""Running a graph: plans, buffers, and the memory they book."""
