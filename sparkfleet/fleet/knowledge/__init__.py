"""Age of the knowledge that plans are made from, and news upstream."""
