"""Containers of ranks: the tool, the container of a rank, and those without a supervisor."""
