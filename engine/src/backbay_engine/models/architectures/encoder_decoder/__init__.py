"""Models whose encoder reads a text, and whose decoder attends to it."""
