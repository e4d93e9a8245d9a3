"""Files of a fleet and of its ranks: paths, logs, and their limits."""
