"""A model in this process: its port, its sight, its guesses, and what it saves."""
