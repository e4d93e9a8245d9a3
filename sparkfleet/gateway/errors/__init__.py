"""Errors that the gateway itself returns: their form, and one function for each."""
