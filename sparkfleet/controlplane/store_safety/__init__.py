"""Keeps the store from being mistaken: its mark beside it, its copies, and what to do if it is missing, foreign or old."""
