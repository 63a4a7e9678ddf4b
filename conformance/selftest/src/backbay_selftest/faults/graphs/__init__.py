"""Right ops that are wrong beside others in a graph."""
