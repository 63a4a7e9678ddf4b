"""Decoders in which every token passes the same weights; `llama` is the plainest."""
