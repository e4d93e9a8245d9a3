"""Chooses the ladder of one variant: enumerates proposals, evaluates them, and ranks them."""
