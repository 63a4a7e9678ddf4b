"""From a whole graph to ggml's tensors, by the kernels of `ops`: the builder, the supported operands, and the precision of ops."""
