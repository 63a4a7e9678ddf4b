"""What goes between host and worker: frames, messages, errors, log records, and the facts of a model."""
