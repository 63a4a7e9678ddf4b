"""The two classes that a backend author subclasses, and the table of kernels."""
