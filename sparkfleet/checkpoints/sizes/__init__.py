"""Parameters and bytes by part of a model."""
