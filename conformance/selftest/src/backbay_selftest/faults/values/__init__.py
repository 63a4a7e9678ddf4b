"""Wrong numbers: rounding, quantized blocks, attributes, positions, and the order of a sort."""
