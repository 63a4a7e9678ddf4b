"""ONNX Runtime itself: the library, its execution providers, and the device that sessions run on."""
