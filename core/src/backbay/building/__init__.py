"""Building graphs from traced tensors: order, composites, and the ops that composites need."""
