"""From traced tensors to a graph: order, composites, and the parts of composites."""
