"""Wrong places: strides, views, indices, repeated operands, and reads out of bounds."""
