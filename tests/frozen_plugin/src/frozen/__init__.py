"""Two backends, written once against contract 1.1."""
