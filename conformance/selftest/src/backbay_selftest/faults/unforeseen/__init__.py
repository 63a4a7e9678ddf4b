"""Faults that were planted without knowledge of the suite, and that it missed at first."""
