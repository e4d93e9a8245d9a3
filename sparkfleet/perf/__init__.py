"""Predicts memory and speed of a model shape under an engine configuration. Pure."""
