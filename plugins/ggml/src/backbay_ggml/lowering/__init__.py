"""From a checked graph to ggml's tensors: the builder, the form of products, and the supported operands."""
