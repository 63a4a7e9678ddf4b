"""Rounding, encoding and error bounds for each dtype, and the comparison of results."""
