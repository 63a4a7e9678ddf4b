"""Buffers that sessions are bound to, and the working memory of graphs."""
