"""Commands, environment and files of each engine's ranks. A fake engine beside them."""
