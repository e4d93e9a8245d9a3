"""The start of an engine: from its ranks to the checks and the measurement before it serves."""
