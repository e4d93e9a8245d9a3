"""The checks, one file per theme; `registry.py` lists them."""
