"""A tiny Whisper: what it hears, its network, its training and its files."""
