"""The Gemma family: capped logits, windows, norms around every branch."""
