"""Reports of a run: outcomes, tables, pages, certificates, and known failures."""
