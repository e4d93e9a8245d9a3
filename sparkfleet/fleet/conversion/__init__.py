"""Makes deployments of launch lines that somebody has: scripts, compose files, recipes. Nothing of them is run."""
