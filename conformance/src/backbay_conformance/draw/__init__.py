"""What a call is drawn from: choices, data, layouts, operands, and small model files."""
