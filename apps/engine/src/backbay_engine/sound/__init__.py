"""Sound: from a file to samples, from samples to log-mel spectrograms, and from these to rows."""
