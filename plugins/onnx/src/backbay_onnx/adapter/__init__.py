"""Any execution provider of ONNX Runtime as a backend, to judge it: one session for each call, or for each graph."""
