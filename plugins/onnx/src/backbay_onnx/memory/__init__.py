"""Memory that sessions are bound to, and the books of what they work in."""
