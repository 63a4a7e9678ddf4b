"""Core's ops, lowered to ggml's functions, a module for each family."""
