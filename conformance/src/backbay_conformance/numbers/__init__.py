"""Numbers of each dtype: rounding, encoding, error bounds, and the comparison of results with them."""
