"""The values of metadata as callers ask for them: converted, checked, and declared as keys."""
