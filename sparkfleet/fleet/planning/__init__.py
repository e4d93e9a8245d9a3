"""Plans of deployments with the fleet's facts: checkpoints found, candidates chosen, commands printed."""
