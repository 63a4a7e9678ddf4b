"""Ollama's API: its answers, its lists of models, and its embeddings."""
