"""Images: from a file to pixels, and from pixels to the rows that enter a text."""
