"""One class per fact of a node: the command that reads it and the parser of its output."""
