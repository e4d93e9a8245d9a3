"""What to do: pure decisions, each with its reasons."""
