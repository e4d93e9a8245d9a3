"""Numbers drawn from published measurements: evidence by combination, fitted factors."""
