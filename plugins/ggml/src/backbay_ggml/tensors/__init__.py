"""ggml's tensors: how they lie in memory, who owns that memory, how one dtype becomes another."""
