"""From a checked graph to ggml's tensors: the builder, the supported operands, and the precision of ops."""
