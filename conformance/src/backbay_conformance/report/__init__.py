"""What a run found: outcomes, tables, pages, certificates, and expected failures."""
