"""Caches that attention reads: of a text's own history, of an encoder's text, and of pictures."""
