"""Choice of a group for a request: the one that will finish it first, by predicted speeds, load and warm prefixes."""
