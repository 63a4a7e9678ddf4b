"""One kernel by itself: its check, and the bounds alone for other harnesses."""
