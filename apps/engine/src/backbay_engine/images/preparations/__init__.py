"""How each family turns a picture into pixels: sizes, grids and order exactly as its reference processor."""
