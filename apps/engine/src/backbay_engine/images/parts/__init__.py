"""The parts of encoders: each takes its tensors from a file by name; calling it traces it."""
