"""Decoders with attention in every block; `llama` has the plainest."""
