"""Use-cases before a fleet runs: finding its machines and cables, and setting up the rails."""
