"""Layers of a model: attention, recurrent state, context length."""
