"""A model in this process: its port, its media, its guesses, and what it saves."""
