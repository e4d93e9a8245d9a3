"""Arguments that a deployment gives an engine: limits, reserved flags, overrides."""
