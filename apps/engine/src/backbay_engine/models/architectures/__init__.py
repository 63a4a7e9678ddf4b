"""The architectures of this package: a folder for each kind, a file for each family."""
