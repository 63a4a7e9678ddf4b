"""From a checked graph to an ONNX model, and what is bound to its inputs and outputs."""
