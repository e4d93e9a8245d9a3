"""How engines are told: argv, environment, probes. Pure."""
