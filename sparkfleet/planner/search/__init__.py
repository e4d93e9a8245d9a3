"""Enumerates proposals, judges them and ranks them into a ladder."""
