"""Drawing a call: choices, data, layouts, operands, and small model files."""
