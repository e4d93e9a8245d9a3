"""Programs of staging that run on a node."""
