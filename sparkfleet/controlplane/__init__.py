"""Keeps what runs equal to what is wanted."""
