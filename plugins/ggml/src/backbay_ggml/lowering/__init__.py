"""From a checked graph to ggml's tensors, the form of products, and what ggml's CPU code supports."""
