"""The architectures of this package, a file for each family."""
