"""One running engine instance: rank set, canary, hang detector, startup and serving watch."""
