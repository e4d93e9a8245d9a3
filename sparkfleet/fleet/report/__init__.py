"""A running fleet in words: its status, outcome, measurements and the times of its steps."""
