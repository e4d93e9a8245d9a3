"""Keeps the right store in use: its mark, its copies, and the errors if it is missing, foreign or old."""
