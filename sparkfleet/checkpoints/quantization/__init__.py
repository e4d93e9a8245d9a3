"""Formats of weights and the parts of a model that each covers."""
