"""Steps: the host's data of one forward pass."""
