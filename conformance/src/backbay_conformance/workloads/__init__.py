"""The calls of a model: of a GGUF file's steps, of an ONNX graph, or of an exported program of PyTorch."""
