"""Tables of the store: one class for each concern, each on the same database."""
