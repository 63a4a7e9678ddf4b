"""Cells: the memory for keys and values, which cell holds what, who sees it, and what a file keeps of it."""
