"""The bytes of tensors: encoding and decoding, buffers, leaves."""
