"""From a checked graph to an ONNX model, and the records of its inputs and outputs."""
