"""Numbers and their bytes: encoding, decoding, and data of the host on its way into a leaf."""
