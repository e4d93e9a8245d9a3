"""Invariants of a simulated fleet, and what has to be known from step to step to check them."""
