"""The register: certificates of engines, checked without trust in who wrote them. Nothing here judges a call."""
