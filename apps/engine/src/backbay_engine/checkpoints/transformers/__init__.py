"""Folders of Hugging Face's transformers: their configuration, families, tensors and vocabularies, as model files have them."""
