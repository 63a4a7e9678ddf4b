"""The endpoints of llama.cpp's server that are its own."""
