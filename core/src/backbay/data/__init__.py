"""Tensors' bytes: encoding and decoding, buffers, leaves."""
