"""Text: tokenizers, chat templates, and the sampling of tokens."""
