"""From a whole graph to an ONNX model, by the kernels of `ops`, and the records of its inputs and outputs."""
