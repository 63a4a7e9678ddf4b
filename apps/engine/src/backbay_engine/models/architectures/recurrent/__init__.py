"""Decoders with recurrent blocks, alone or between blocks with attention."""
