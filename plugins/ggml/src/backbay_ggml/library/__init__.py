"""libggml: found, opened, checked, built anew, and declared to Python."""
