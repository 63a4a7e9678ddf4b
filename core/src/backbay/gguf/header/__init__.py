"""The header of one file: its fields in order, its metadata as stored, and its table of tensors."""
