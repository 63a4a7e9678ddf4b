"""Drawing a call by Hypothesis, and shrinking one that fails: choices, data, layouts, operands, small model files."""
