"""Enumerates proposals, evaluates them and ranks them into a ladder."""
