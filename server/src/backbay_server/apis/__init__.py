"""The APIs that clients know: their endpoints, bodies and answers."""
