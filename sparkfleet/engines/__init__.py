"""Commands, environment and files of each engine's ranks. Pure but for the fake engine."""
